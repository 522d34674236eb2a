"""How a field of settings is asked for on the command line: said once, beside the field.

limit: Annotated[int | None, Option("first N units only", INPUT, least=1)] = None
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

INPUT, WHAT, OUTPUT, MACHINE = "Input", "What to measure", "Output", "Machine"
TRAINING, MODEL = "Training", "Model"
"""Headings under which `--help` lists options."""

DTYPES = ("float32", "float64", "bfloat16", "float16")
DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "mtia", "xla")
"""Kinds of devices; a number after a colon names one of several (`cuda:1`)."""


@dataclass(frozen=True)
class Option:
    """What `--help` says of a field, and what may be given.

    help, group   the text and the heading it stands under
    flags         as typed; by default `--name-of-the-field`. `argument`: given without a flag
    least, most   the range of a number
    known         the names there are: of the field, or of each of its parts where it is a tuple
    every         the name that stands for the field's default (`all`)
    parse, shown  from what is typed to the value, and the default as it is typed, where the type does not say how
    check         called with the value, before anything heavy is imported; raises where it cannot be right
    """

    help: str
    group: str
    flags: tuple[str, ...] = ()
    argument: bool = False
    least: float | None = None
    most: float | None = None
    known: tuple[str, ...] = ()
    every: str = ""
    parse: Callable[[str], Any] | None = None
    shown: str = ""
    check: Callable[[Any], None] | None = None
