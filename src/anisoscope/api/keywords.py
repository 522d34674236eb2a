"""Read the keyword arguments of the public functions; they are the options of the command line."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from anisoscope.errors import UsageError
from anisoscope.options import build_settings, expand_home, list_field_names
from anisoscope.runs.job import OutputOptions

Kind = TypeVar("Kind")

CALLED_HERE = {
    "tokenizer": "processor",
    "feature_extractor": "processor",
    "image_processor": "processor",
    "dataset": "corpus",
    "texts": "inputs",
    "batch_size": "batch_tokens",
    "max_len": "max_length",
    "revision": "model='name@revision'",
    "metric": "metrics",
    "output_dir": "output",
}
"""What other libraries call a keyword → what it is called here."""


def read_keywords(
    kind: type[Kind], options: Mapping[str, Any]
) -> tuple[Kind, OutputOptions, bool]:
    """Split keyword arguments into settings of the class `kind`, output options, and whether progress is hidden.

    UsageError, with similar names, for an unknown keyword, and for a value that does not fit.
    """
    given = dict(options)
    # Python shows progress only if asked to.
    quiet = bool(given.pop("quiet", True))
    names_of_output = list_field_names(OutputOptions)
    output = OutputOptions(
        **{name: given.pop(name) for name in names_of_output if name in given}
    )
    if output.output is not None:
        output = replace(output, output=expand_home(output.output))
    # A reader who comes from another library types its words.
    for name in given:
        # Unless it is a field of these settings, which means what it says.
        if name in CALLED_HERE and name not in list_field_names(kind):
            raise UsageError(
                "a known keyword", repr(name), f"it is called {CALLED_HERE[name]} here"
            )
    return build_settings(kind, given, also=[*names_of_output, "quiet"]), output, quiet
