"""Write the page that traces one published number, H = .988, to the code that made it; its tables come from records."""

import pandas as pd
from committed import RESULTS
from pages import table_row

from anisoscope.store import select
from anisoscope_papers.fosse2023.entry import Evidence
from anisoscope_papers.fosse2023.grid import CONTROL, OWN, TITLES, add_options
from anisoscope_papers.fosse2023.simulated_forms import AGAIN, DRAWN, ONE_WORD, PLAIN, estimate_plain
from anisoscope_papers.study import read_published
from anisoscope_papers.training.entropy_forms import FORMS

FINISHED = RESULTS / "fosse2023" / "finished"
HEADS = {
    "row": "H(p) / ln n: what the penalty acts on",
    PLAIN: "H(p) / ln(n − 1)",
    "columns": "H(softmax of the column sums) / ln(n − 1)",
    AGAIN: "H(softmax of p) / ln(n − 1)",
}


def page() -> str:
    """Return the page: from the published number to the code, and what follows."""
    forms = pd.read_parquet(FINISHED / "forms" / "records.parquet")
    measured = add_options(pd.read_parquet(FINISHED / "table4" / "records.parquet"))
    parts = [ASKED, _ends(forms), SIMULATED, _behind(forms), PRINTED, _ours(measured), FOLLOWS]
    return "\n\n".join(part.strip() for part in parts)


def _table(*rows: tuple[str, ...]) -> str:
    """Format rows as a Markdown table; the first is the head."""
    return "\n".join(table_row(row) for row in (rows[0], ("---",) * len(rows[0]), *rows[1:]))


def _ends(forms: pd.DataFrame) -> str:
    """Format the floor and ceiling of every form of entropy H, at the lengths of every corpus."""
    corpora = list(dict.fromkeys(forms["corpus"]))
    lengths = {c: select(forms, corpus=c, metric="forms.length").iloc[0] for c in corpora}
    head = [f"{TITLES[c]} ({x['n_units']} utterances of {x['value']:.0f} tokens)" for c, x in lengths.items()]
    rows = []
    for form, name in FORMS.items():
        ends = [[_value(forms, c, f"forms.{end}", form) for end in ("floor", "ceiling")] for c in corpora]
        rows.append(
            (f"{name.partition(':')[0]}" if form != "row" else "–", HEADS[form], *(" to ".join(e) for e in ends))
        )
    return _table(("form", "", *head), *rows)


def _value(frame: pd.DataFrame, corpus: str, metric: str, form: str) -> str:
    """Format a metric of one form and corpus."""
    return f"{select(frame, corpus=corpus, metric=metric, component=form)['value'].iloc[0]:.3f}"


def _behind(forms: pd.DataFrame) -> str:
    """Format the plain entropy H that belongs to each number published in form C, for either kind of row, with its
    range.
    """
    rows = []
    for here in Evidence("forms", forms).corpora:
        if here.numbers:
            found = [estimate_plain(here, kind) for kind in (DRAWN, ONE_WORD)]
            cells = [f"{value:.2f} ({low:.2f} to {high:.2f})" for value, low, high in found]
            rows.append((here.title, str(here.numbers["published"]), *cells, str(here.numbers["next"])))
    return _table(("corpus", "published at λ = 0", DRAWN, ONE_WORD, "published at λ = 0.0001"), *rows)


def _ours(measured: pd.DataFrame) -> str:
    """Format the authors' printed runs with ours, trained and at step 0, in every form: means over seeds."""
    rows = []
    at_first = select(measured, metric="cls_entropy", layers=1.0, weight=0.0)
    for corpus, printed in read_published("fosse2023")["forms"]["printed"].items():
        theirs = " ".join(f"{x:.3f}" for x in printed["entropy"])
        for what, family in (("ours, trained", OWN), ("ours, step 0", CONTROL)):
            found = select(at_first, corpus=corpus, family=family)
            cells = [select(found, component=form)["value"] for form in (PLAIN, "columns", AGAIN)]
            means = [f"{x.mean():.3f}" if len(x) else "–" for x in cells]
            rows.append((TITLES[corpus], theirs if family == OWN else "", what, str(len(cells[0])), *means))
    return _table(("corpus", "printed by the authors, runs 0 to 2", "", "seeds", "A", "B", "C"), *rows)


ASKED = """
# From H = .988 to the code that made it

Table 4 of Fosse et al. 2023 gives the entropy of the attention of `[CLS]`: on HateXplain .988 without a penalty and
.31 with the smallest one, on e-SNLI .999 and .576, on YelpHat .47 and .48. Two of the three corpora look as if
attention had been nearly uniform until it was penalised. It was most likely not: the number at λ = 0 is another
quantity. With p the row of `[CLS]` over the n tokens of an utterance, the authors' public code has held these forms
of H (definitions: `training/entropy_forms.py`); lowest and highest mean at the lengths that are measured:
"""

SIMULATED = """
**Form C cannot look sharp.** Weights lie in [0, 1]; a softmax of them hardly differs from a uniform row. All of the
attention on one word gives the floors above: .976 where form A says 0.

The history of the code (github lolofo/AttentionGeometry, and Kihansi95/ExplanationPairSentencesTasks before it):

1. The file *pur_attention_key_reg* logged H with `Entropy(normalize=True)`, that is form C.
2. Notebook commit `8f97bcc` (14 December 2022) is the first to hold the published λ = 0 row of HateXplain (K .745, V
   .578).
3. Commit `2485546`, 41 seconds later (22:55:47), sets `normalize=False`: form A from then on.
4. The runs with λ > 0 exist only in the repository of 2023. So does the YelpHat row, which was trained again. All
   of these are form A, so H does not jump from one λ to the next.

So λ = 0 was published in form C on HateXplain and e-SNLI, and everything else in form A. No notebook prints .988 or
.999 themselves; this is the reading that fits all of the rest. What plain H stands behind them? Rows that are drawn,
at the lengths of each corpus, in both forms:
"""

PRINTED = """
(The mean over 50 draws of scores; in brackets: every plain H that rounds to the published number, in the middle 95 % of
the draws.) On HateXplain the number behind .988 is between .26 and .59, and for scores as a random row has them .29
(.26 to .33), beside the .31 of the next λ: no fall at all. On e-SNLI form C is so flat that .999 says little: a plain H
of .71 to .94. The same command makes the table again, in seconds and with
nothing trained:

    anisoscope reproduce fosse2023 --only forms --settings finished

A notebook of the authors (`2022-11-03 Contextualization…`, cell 12) prints the H of 41 runs at λ = 0, most likely of
form B. Its one-layer runs, beside ours:
"""

FOLLOWS = """
What follows for "quasi-uniform attention": the .988 is no evidence of it, and the .47 of YelpHat and the printed
runs, none above .34, speak against it; .999 on e-SNLI would be flat attention, which no printed run has. In form A
our models are nearly uniform at step 0 and sharp once they have learnt. Table 4 here compares λ = 0 on those two
corpora with ours in form C, with a margin of .003, since form C has hardly more than .02 to vary in; all the rest in
form A.
"""
