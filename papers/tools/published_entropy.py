"""Write the page that traces one published number, H = .988, to the code that made it; its tables come from records."""

import pandas as pd
from committed import RESULTS
from pages import table_row

from anisoscope.store import select
from anisoscope_papers.fosse2023.entry import Evidence
from anisoscope_papers.fosse2023.grid import CONTROL, OWN, TITLES, add_options
from anisoscope_papers.fosse2023.simulated_forms import (
    AGAIN,
    DRAWN,
    ONE_WORD,
    PLAIN,
    estimate_plain,
)
from anisoscope_papers.study import read_published
from anisoscope_papers.training.entropy_forms import FORMS

FINISHED = RESULTS / "fosse2023" / "finished"
HEADS = {
    "row": "the penalty acts on H(p) / ln n",
    PLAIN: "H(p) / ln(n − 1)",
    "columns": "H(softmax of the column sums) / ln(n − 1)",
    AGAIN: "H(softmax of p) / ln(n − 1)",
}


def page() -> str:
    """Return the page: from the published number to the code, and what follows."""
    forms = pd.read_parquet(FINISHED / "forms" / "records.parquet")
    measured = add_options(pd.read_parquet(FINISHED / "table4" / "records.parquet"))
    parts = [
        ASKED,
        _ends(forms),
        SIMULATED,
        _behind(forms),
        PRINTED,
        _ours(measured),
        FOLLOWS,
    ]
    return "\n\n".join(part.strip() for part in parts)


def _table(*rows: tuple[str, ...]) -> str:
    """Format rows as a Markdown table; the first is the head."""
    return "\n".join(
        table_row(row) for row in (rows[0], ("---",) * len(rows[0]), *rows[1:])
    )


def _ends(forms: pd.DataFrame) -> str:
    """Format the floor and ceiling of every form of entropy H, at the lengths of every corpus."""
    corpora = list(dict.fromkeys(forms["corpus"]))
    # Floor and ceiling depend on the lengths of texts, so that each corpus has its own.
    lengths = {
        c: select(forms, corpus=c, metric="forms.length").iloc[0] for c in corpora
    }
    head = [
        f"{TITLES[c]} ({x['n_units']} utterances of {x['value']:.0f} tokens)"
        for c, x in lengths.items()
    ]
    rows = []
    for form, name in FORMS.items():
        # The first line is what the penalty acts on, which has no letter.
        letter = name.partition(":")[0]
        if form == "row":
            letter = "–"
        row = [letter, HEADS[form]]
        for corpus in corpora:
            floor = _value(forms, corpus, "forms.floor", form)
            ceiling = _value(forms, corpus, "forms.ceiling", form)
            row.append(f"{floor} to {ceiling}")
        rows.append(tuple(row))
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
        # YelpHat's published H is in form A already: there is nothing behind it.
        if here.numbers:
            found = [estimate_plain(here, kind) for kind in (DRAWN, ONE_WORD)]
            cells = [
                f"{value:.2f} ({low:.2f} to {high:.2f})" for value, low, high in found
            ]
            rows.append(
                (
                    here.title,
                    str(here.numbers["published"]),
                    *cells,
                    str(here.numbers["next"]),
                )
            )
    kinds = ("plain H, if logits are normal", "plain H, if one word is above the rest")
    return _table(
        ("corpus", "published at λ = 0", *kinds, "published at λ = 0.0001"), *rows
    )


def _ours(measured: pd.DataFrame) -> str:
    """Format the authors' printed runs with ours, trained and at step 0, in every form: means over seeds."""
    rows = []
    # One-layer models without a penalty, as those that the authors printed.
    at_first = select(measured, metric="cls_entropy", layers=1.0, weight=0.0)
    for corpus, printed in read_published("fosse2023")["forms"]["printed"].items():
        theirs = " ".join(f"{x:.3f}" for x in printed["entropy"])
        for what, family in (("ours, trained", OWN), ("ours, step 0", CONTROL)):
            found = select(at_first, corpus=corpus, family=family)
            seeds = 0
            means = []
            for form in (PLAIN, "columns", AGAIN):
                values = select(found, component=form)["value"]
                means.append(f"{values.mean():.3f}" if len(values) else "–")
                # The n of the row is that of form A.
                if form == PLAIN:
                    seeds = len(values)
            # The authors' runs are named once for each corpus.
            printed_runs = theirs if family == OWN else ""
            rows.append((TITLES[corpus], printed_runs, what, str(seeds), *means))
    return _table(
        ("corpus", "printed by the authors, runs 0 to 2", "", "seeds", "A", "B", "C"),
        *rows,
    )


ASKED = """
# From H = .988 to the code that made it

Table 4 of Fosse et al. 2023 gives H, the normalised entropy of the attention of `[CLS]`. λ is the weight of a penalty
on this entropy. Without the penalty (λ = 0) and with the smallest one (λ = 0.0001), the table has these values of H:

| | λ = 0 | λ = 0.0001 |
| --- | --- | --- |
| HateXplain | .988 | .31 |
| e-SNLI | .999 | .576 |
| YelpHat | .47 | .48 |

On HateXplain and e-SNLI it looks as if attention had been nearly uniform until it was penalised. Most likely it was
not: the two numbers at λ = 0 come from another formula than the rest of the table.

The authors' public code has used three formulas for H in turn. We call them forms A, B and C. Let p be the row of
`[CLS]`: its attention to the n tokens of a text. H(p) is the entropy of p. The column sums add up the attention that
each token gets from all tokens. The first line of the next table is no form of H, but what the penalty acts on. The
numbers are the lowest and the highest possible mean over the texts of each corpus (`training/entropy_forms.py`). Form A
can exceed 1 because it divides by the logarithm of n − 1, not n:
"""

SIMULATED = """
**Form C cannot look sharp.** Attention weights lie between 0 and 1, and a softmax of such numbers hardly differs from a
uniform row. Even if all attention is on one word, form C of HateXplain is .976, where form A is 0.

The history of the code (github lolofo/AttentionGeometry, and Kihansi95/ExplanationPairSentencesTasks before it):

1. The file *pur_attention_key_reg* logged H with `Entropy(normalize=True)`. This is form C.
2. The notebook commit `8f97bcc` (14 December 2022) is the first that contains the other two published numbers of
   HateXplain at λ = 0: sim(K) = .745 and sim(V) = .578.
3. Commit `2485546`, 41 seconds later (22:55:47), sets `normalize=False`. From then on the code has form A.
4. The runs with λ > 0 exist only in the repository of 2023. The row of YelpHat, which was trained again,
   is also found only there. All of these numbers are in form A. So H of YelpHat does not jump between λ = 0 and
   λ = 0.0001, and the others do.

So the H of HateXplain and e-SNLI at λ = 0 was most likely published in form C, and every other H in form A. No notebook
prints .988 or .999, so this is not certain. But it agrees with everything else that we found.

Which H in form A (*plain H*) belongs to .988 and .999 in form C? We simulated rows of attention that are as long as the
texts of each corpus, from uniform to sharp, and computed both forms of them. There are two kinds of rows: the attention
logits (scores) are drawn from a normal distribution, or one word has a higher logit than all others. The table has the
plain H of those rows whose form C is the published number. In brackets is the range of plain H for all numbers that
round to the published one (the middle 95 % of 50 simulations). The last column is the published H at λ = 0.0001, which
is in form A:
"""

PRINTED = """
On HateXplain the plain H behind .988 is between .26 and .59. If logits are normal, it is .29 (.26 to .33), and the
published H at λ = 0.0001 is .31: then H does not fall at all. On e-SNLI form C is so flat that .999 says little: the
plain H is between .71 and .94. This command makes the table again. It takes seconds and trains nothing:

    anisoscope reproduce fosse2023 --only forms --settings finished

A notebook of the authors (`2022-11-03 Contextualization…`, cell 12) prints the H of 41 runs at λ = 0, most likely in
form B. The table compares its three runs of one-layer models with ours (means over seeds, in all three forms; *step 0*
is before training):
"""

FOLLOWS = """
The paper calls attention "quasi-uniform". What do these numbers say about that?

- The .988 of HateXplain is no evidence for it.
- The .47 of YelpHat and the printed runs speak against it: no printed H is above .34.
- The .999 of e-SNLI, even in form C, needs rather flat attention (a plain H of .71 or more). The printed runs of e-SNLI
  are not flat: most likely in form B, they have .34 or less.
- In form A, our models are nearly uniform at step 0 and sharp after training.

So our table 4 compares the published H with ours in form C for λ = 0 on HateXplain and e-SNLI, and in form A elsewhere
([the table](fosse2023.md#the-papers-tables-and-figures-in-its-order)).
"""
