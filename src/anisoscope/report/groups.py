"""Section on token subsets: which kinds of token are alike inside, and which differ from the others."""

import pandas as pd

from anisoscope.axes import SUBSET_FAMILIES
from anisoscope.charts import builders as charts
from anisoscope.report.parts import Figure, Section, columns, extremes, span_of
from anisoscope.report.results import Results
from anisoscope.report.words import listing


def groups(results: Results) -> Section | None:
    """Mean cosines within and between token subsets, one matrix per family of subsets."""
    frame = results.components("group_cosine")
    frame = frame[frame["component"].str.contains(" × ") & frame["layer"].notna()]
    if frame.empty:
        return None
    shown = _chosen_places(results, frame)
    families = _families(shown)
    lead = (
        "The mean cosine within and between subsets of tokens. A subset that is alike inside and unlike the others "
        "has a direction of its own: special tokens, the first token, rare words."
    )
    return Section(
        "groups", "Which tokens are alike?", lead, tuple(_matrix(results, *item) for item in families.items())
    )


def _chosen_places(results: Results, frame: pd.DataFrame) -> pd.DataFrame:
    """First, most anisotropic and last layer of the stack where A is largest; of other stacks, the most anisotropic."""
    hidden = frame[frame["site"].eq("hidden")]
    curve = results.layers("mean_cosine")
    parts = []
    main = results.peak["stack"] if results.peak is not None else hidden["stack"].iloc[0]
    for stack, rows in hidden.groupby("stack", sort=False):
        among = curve[curve["stack"].eq(stack) & curve["site"].eq("hidden") & curve["layer"].isin(rows["layer"])]
        peak = float(extremes(among)[1]["layer"]) if len(among) else float(rows["layer"].max())
        marks = {peak: "most anisotropic"}
        if stack == main:
            marks = {float(rows["layer"].min()): "first", float(rows["layer"].max()): "last"} | marks
        kept = rows[rows["layer"].isin(list(marks))].sort_values("layer", kind="stable")
        names = kept["layer"].map(lambda layer, marks=marks: f"layer {layer:.0f}, {marks[layer]}")
        parts.append(kept.assign(place=names if hidden["stack"].nunique() == 1 else f"{stack} " + names))
    return pd.concat(parts)


def _families(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows by family of subsets, mirrored into full matrices, subsets in the order of the glossary."""
    order = {name: (family, i) for family, names in SUBSET_FAMILIES.items() for i, name in enumerate(names)}
    frame = frame.assign(
        first=frame["component"].str.split(" × ").str[0], second=frame["component"].str.split(" × ").str[1]
    )
    frame["family"] = [order.get(name, (name.split(" ")[0], 0))[0] for name in frame["first"]]
    mirrored = frame[frame["first"].ne(frame["second"])].rename(columns={"first": "second", "second": "first"})
    frame = pd.concat([frame, mirrored])
    rank = {name: i for i, name in enumerate(order)}
    key = pd.DataFrame({"p": frame["layer"], "a": frame["first"].map(rank), "b": frame["second"].map(rank)})
    frame = frame.loc[:, :].iloc[key.reset_index(drop=True).sort_values(["p", "a", "b"], kind="stable").index]
    return {str(family): rows for family, rows in frame.groupby("family", sort=False)}


def _matrix(results: Results, family: str, frame: pd.DataFrame) -> Figure:
    short = frame.assign(**{side: frame[side].str.removeprefix(f"{family} ") for side in ("first", "second")})
    notes = {
        "frequency": "Bins hold equal numbers of tokens; bin 1 holds the rarest types.",
        "position": "Positions are counted from 0 within a sequence.",
        "kind": "The first token of a sequence, the other special tokens, and all the rest.",
    }
    return Figure(
        f"groups-{family}",
        f"Mean cosine within and between tokens by {family}",
        f"{notes.get(family, '')} On the diagonal pairs inside a subset, beside it pairs of one token from each. "
        "Numbers in "
        "brackets have an interval that holds 0; empty cells had too few tokens.".strip(),
        results.basis(frame),
        f"Heat maps of mean cosines between {short['first'].nunique()} subsets of tokens at "
        f"{listing(list(dict.fromkeys(frame['place'])))}: {span_of(frame, lambda row: row['component'])}.",
        lambda width: charts.heatmap(
            short,
            x="first",
            y="second",
            panel="place",
            title="mean cosine",
            names=(family, family),
            diverging=True,
            size=(width, 30),
            columns=columns(width, 3),
        ),
    )
