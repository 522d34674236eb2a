"""Which columns of a table of labelled texts are read."""

from dataclasses import asdict, dataclass
from typing import Annotated

from anisoscope.options import INPUT, Option


@dataclass(frozen=True)
class Columns:
    """Columns of a table of labelled texts, by role; None: guessed."""

    text_column: Annotated[
        str | None, Option("column of a table; default: guessed; alone: one text is read, no second", INPUT)
    ] = None
    second_column: Annotated[str | None, Option("column of the second text", INPUT)] = None
    label_column: Annotated[str | None, Option("column of the class", INPUT)] = None
    rationale_column: Annotated[str | None, Option("column of marks, one per word", INPUT)] = None
    split_column: Annotated[str | None, Option("column of each row's split: train, validation, test", INPUT)] = None

    def build(self) -> dict[str, str] | None:
        """{role: column} of those that are named; None where none is."""
        given = {name.removesuffix("_column"): column for name, column in asdict(self).items() if column}
        return given or None
