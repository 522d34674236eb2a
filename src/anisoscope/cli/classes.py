"""`anisoscope classes`: the geometry of the classes of a labelled corpus."""

import os
from dataclasses import replace
from functools import partial
from typing import Annotated

from anisoscope.cli import tables
from anisoscope.cli.declared import Only
from anisoscope.cli.view import Place, Quiet, View, close, show
from anisoscope.data.names import check_model
from anisoscope.options import INPUT, Option
from anisoscope.progress import shown, waiting
from anisoscope.runs.job import Classes, Job


def classes(
    look: Classes,
    job: Annotated[Job, Only(("batch_tokens", "dtype", "device", "trust_remote_code"))],
    place: Place,
    view: View,
    quiet: Quiet,
    model: Annotated[
        str,
        Option(
            "folder or hub id (with @revision) of a classifier; of any other text model, less",
            INPUT,
            argument=True,
            check=check_model,
        ),
    ] = "builtin:minilm",
) -> None:
    """Is the direction of an utterance its class, layer by layer? What is attention worth to the classifier, and what
    explains it? Of any model, on any labelled corpus: a run folder with records and a report; tables on stdout.
    """
    with waiting(f"loading {model}", quiet=quiet.quiet):
        from anisoscope.runs.classes import run_classes
        from anisoscope.runs.findings import findings
    done = run_classes(
        replace(job, model=model),
        look,
        place.output,
        resume=place.resume,
        overwrite=place.overwrite,
        shown=partial(shown, quiet=quiet.quiet),
    )
    if int(os.environ.get("RANK", "0")):  # one process of a torchrun job speaks for all
        return
    show(tables.of_classes(done.records), view, findings(done.records))
    close(done.folder, done.manifest["warnings"], quiet=quiet.quiet)
