"""Section 3: how alike the tokens of a sentence are, layer by layer, before and after fine-tuning."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope.studies.fosse2023.grid import NEEDS, SETTINGS, Plan
from anisoscope.studies.fosse2023.measurements import PRETRAINED, accuracies, gather, geometry
from anisoscope.studies.fosse2023.over_cells import Seeds, compared, corpora, note, over, sound, title
from anisoscope.studies.fosse2023.published import NUMBERS
from anisoscope.studies.judge import Array, judged, of_seeds
from anisoscope.studies.study import Claim, Compared, Context, Study, Verdict

SOURCE = "Fosse et al. 2023, section 3"
BERT, BEFORE = (NUMBERS["sec3"]["esnli"][when] for when in ("after", "before"))
"""Published curves on e-SNLI: of fine-tuned BERT, layers 0 to 12; of pre-trained BERT, its two ends."""
LATE = 1 / 3
CONVERGES = Claim(
    "converges after fine-tuning",
    "In the last layer of the fine-tuned encoder the tokens of a sentence are more alike than before fine-tuning",
    SOURCE,
    "0.41 before, 0.69 after (BERT, e-SNLI)",
)
GROWS = Claim(
    "grows with depth",
    "After fine-tuning the similarity grows from the first layer's input to the last layer",
    SOURCE,
    "0.08 → 0.69 (BERT, e-SNLI)",
)
LAST = Claim(
    "most in the last layers",
    "More than half of this growth is in the last third of the layers",
    SOURCE,
    "0.34 → 0.69 in the last four of twelve layers: 0.58 of the growth",
)
POLICY = "all"


def measure(plan: Plan, context: Context) -> pd.DataFrame:
    """Geometry of every fine-tuned encoder, and of the encoder as it was."""
    return gather(plan.fine_tuned(), plan, context, accuracies, geometry)


def _rows(records: pd.DataFrame, corpus: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Similarities by layer before fine-tuning, and after it of sound models."""
    rows = select(records, corpus=corpus, metric="intra_sequence", site="hidden", token_policy=POLICY)
    before = rows["model"].str.endswith(PRETRAINED).fillna(False).astype(bool)
    return rows[before], rows[~before & rows.index.isin(sound(records).index)]


def _curve(records: pd.DataFrame, rows: pd.DataFrame) -> Array:
    """[seed, layer]"""
    table = Seeds(records, rows, "layer")
    return np.stack([table[layer] for layer in table] or [table[0], table[1]], 1)


def late_share(curve: Array) -> Array:
    """Share of the growth [seed, layer], from the first layer to the last, that lies in the last third."""
    depth = curve.shape[1] - 1
    start = depth - max(1, round(depth * LATE))
    grown = curve[:, -1] - curve[:, 0]
    return np.asarray(np.where(grown > 0, (curve[:, -1] - curve[:, start]) / np.where(grown > 0, grown, 1), np.nan))


def judge(records: pd.DataFrame) -> Sequence[Verdict]:
    tests = []
    for corpus in corpora(records):
        here = select(records, corpus=corpus)
        before, after = (_curve(here, rows) for rows in _rows(records, corpus))
        test = partial(of_seeds, reason=note(records, corpus), subject=title(corpus))
        tests += [
            test(CONVERGES, after[:, -1] - before[:, -1], "last layer, after less before"),
            test(GROWS, after[:, -1] - after[:, 0], "last layer less input"),
            test(LAST, late_share(after), "share of the growth in the last third", 0.5),
        ]
    return judged(tests)


def compare(records: pd.DataFrame) -> Iterator[Compared]:
    """Both ends of both curves on e-SNLI. Before fine-tuning there are no seeds, hence one number."""
    for corpus in filter("esnli".__eq__, corpora(records)):
        before, after = _rows(records, corpus)
        before = before.drop_duplicates("layer")
        for when, ends, rows in (("before", BEFORE, before), ("after", (BERT[0], BERT[-1]), after)):
            for end, layer, published in zip(("input", "last layer"), (0, rows["layer"].max()), ends, strict=True):
                yield compared(f"{title(corpus)}, {end} {when} fine-tuning", published, select(rows, layer=layer))


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Both curves, a panel per corpus; BERT's published curve beside e-SNLI, its layers brought to the same depth."""
    parts = []
    for corpus in corpora(records):
        for name, rows in zip(("pre-trained", "fine-tuned"), _rows(records, corpus), strict=True):
            if len(rows):
                parts.append(over(rows, ["layer"]).assign(model=name, corpus=title(corpus)))
        if corpus == "esnli" and parts:
            depth = max(part["layer"].max() for part in parts)
            layers = np.linspace(0, depth, len(BERT))
            known = {"layer": layers, "value": BERT, "model": "BERT fine-tuned, published", "corpus": title(corpus)}
            parts.append(pd.DataFrame(known))
    if not parts:
        return {}
    frame = pd.concat(parts, ignore_index=True)
    chart = charts.layer_curve(frame, panel="corpus", title="intra-sentence similarity", size=(680, 220), columns=3)
    return {"sec3": chart}


STUDY = Study(
    name="sec3",
    paper="fosse2023",
    title="Similarity of the tokens of a sentence by layer, before and after fine-tuning",
    claims=(CONVERGES, GROWS, LAST),
    settings=SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    compare=lambda records: tuple(compare(records)),
    caption=(
        "Equation 3 of hidden states over the measured test utterances, all tokens; bands: 95 % intervals over seeds "
        "of the fine-tuning. The published curve is of BERT with twelve layers, drawn over the depth of ours (six)."
    ),
    needs=NEEDS,
)
