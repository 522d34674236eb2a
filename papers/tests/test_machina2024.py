"""Isotropy at the end, anisotropy inside: claims that fail where they are false."""

import numpy as np
import pandas as pd
import pytest

from anisoscope.store import as_records
from anisoscope_papers.beyond.trained import SKILL
from anisoscope_papers.machina2024 import networks, trained
from anisoscope_papers.study import read_claims

BOUND = 0.2


def planted(
    last: float, final: float, plain: float, peak: float, embeddings: float = 0.9
) -> pd.DataFrame:
    """Records of six seeds: A after the last block, after the final norm, without its weights, at its largest."""
    random = np.random.default_rng(0)

    def noise() -> float:
        return float(0.005 * random.standard_normal())

    rows = []
    for seed in range(6):
        common = {"model": "base", "seed": seed, "metric": "mean_cosine"}
        for step, share in ((0, 0.0), (500, peak), (2000, 1.0)):
            here = common | {"step": step}
            rows.append(here | {"site": "hidden", "layer": 0, "value": 0.01 + noise()})
            rows.append(
                here | {"site": "hidden", "layer": 1, "value": last * share + noise()}
            )
            rows.append(here | {"site": "final", "value": final * share + noise()})
            rows.append(here | {"site": "plain", "value": plain * share + noise()})
        at_end = common | {"step": 2000}
        shares = at_end | {
            "metric": "mean_cosine.top_share",
            "component": "3",
            "value": 0.7 + noise(),
        }
        rows += [shares | {"site": "hidden", "layer": 1}, shares | {"site": "final"}]
        rows.append(
            at_end
            | {"metric": "mean_cosine.isotropic_q95", "site": "final", "value": BOUND}
        )
        rows.append(
            at_end
            | {
                "metric": "partition",
                "site": "embedding.output",
                "value": embeddings + noise(),
            }
        )
        rows.append(at_end | {"metric": SKILL, "value": 0.3})
    return as_records(pd.DataFrame(rows))


def words(records: pd.DataFrame) -> dict[str, str]:
    return {verdict.claim: verdict.word for verdict in trained.judge(records)}


def test_claims_hold_where_they_are_true_and_fail_where_they_are_false() -> None:
    true = words(planted(last=0.6, final=0.1, plain=0.4, peak=3.0))
    assert set(true.values()) == {"holds"}, true
    false = words(planted(last=0.1, final=0.5, plain=0.2, peak=0.5, embeddings=0.1))
    for name in (
        "isotropic at the end",
        "the final norm makes it so",
        "the norm's weights do it",
    ):
        assert false[name] == "contrary", name
    assert (
        false["isotropic output embeddings"] == "contrary"
        and false["not as theory has it"] == "too small"
    )


def test_where_a_is_largest_the_input_of_the_blocks_is_no_layer() -> None:
    """Embeddings have the largest A of all here, and no share of its dimensions."""
    records = planted(last=0.6, final=0.1, plain=0.4, peak=3.0)
    of_input = (
        (records["site"] == "hidden")
        & (records["layer"] == 0)
        & (records["metric"] == "mean_cosine")
    )
    of_input &= records["component"].isna()
    records.loc[of_input, "value"] += 0.9
    found = trained.find_largest(records)
    assert found["layer"].tolist() == [1] * 6 and found["value"].max() < 0.7
    shares = records["metric"] == "mean_cosine.top_share"
    shallow = records[shares & (records["site"] == "hidden")].assign(layer=0, value=0.1)
    both = pd.concat(
        [shallow, records], ignore_index=True
    )  # of another layer of the same site
    assert trained.read_top_share(both).to_numpy() == pytest.approx(0.7, abs=0.03)


def test_a_norm_inside_the_last_block_is_the_final_one() -> None:
    records = planted(last=0.1, final=0.1, plain=0.1, peak=2.0)
    inside = records[~records["site"].isin(["final", "plain"])]
    bound = records[records["metric"] == "mean_cosine.isotropic_q95"].assign(
        site="hidden", layer=1
    )
    found = {
        v.claim: v for v in trained.judge(pd.concat([inside, bound], ignore_index=True))
    }
    assert found["isotropic at the end"].outcome == "holds"
    assert found["isotropic at the end"].value == pytest.approx(0.1, abs=0.01)
    assert found["the final norm makes it so"].statistic == "not measured"


def network(name: str, inside: float, end: float) -> list[dict[str, object]]:
    """Records of a network of two blocks and a final norm, with intervals over 20 units."""
    common = {"model": name, "stack": "decoder", "n_units": 20}
    rows: list[dict[str, object]] = [
        common
        | {"metric": "mean_cosine.isotropic_q95", "site": "hidden", "value": BOUND}
    ]
    for site, layer, value in (
        ("hidden", 0, 0.9),
        ("hidden", 1, inside),
        ("hidden", 2, 0.1),
        ("final", None, end),
    ):
        ends = {"low": value - 0.02, "high": value + 0.02}
        rows.append(
            common
            | {"metric": "mean_cosine", "site": site, "layer": layer, "value": value}
            | ends
        )
    return rows


def judge_tests(*rows: list[dict[str, object]]) -> dict[str, str]:
    records = as_records(pd.DataFrame([row for several in rows for row in several]))
    return {verdict.claim: verdict.word for verdict in networks.judge(records)}


def test_both_papers_are_judged_on_the_same_networks() -> None:
    one, other, flat = (
        network("one", 0.6, 0.1),
        network("other", 0.5, 0.4),
        network("flat", 0.1, 0.1),
    )
    assert judge_tests(one, other) == {
        "isotropic ones exist": "holds",
        "all are isotropic": "contrary",
        "anisotropic inside": "holds",
    }
    assert judge_tests(other)["isotropic ones exist"] == "contrary"
    assert judge_tests(one, flat)["anisotropic inside"] == "too small"
    assert {
        v.outcome
        for v in networks.judge(as_records(pd.DataFrame({"model": [], "metric": []})))
    } == {"undecided"}


def test_what_a_claim_subtracts_is_given_at_the_end_of_training() -> None:
    records = planted(last=0.6, final=0.1, plain=0.4, peak=3.0)
    (claim,) = (
        claim
        for claim in read_claims("machina2024", "trained").values()
        if claim.site == "final less last"
    )
    at_end = records[(records["step"] == 2000) & (records["metric"] == "mean_cosine")]
    final = at_end.loc[at_end["site"] == "final", "value"].mean()
    last = at_end.loc[at_end["layer"] == 1, "value"].mean()
    words = f"final {final:.3f}, last {last:.3f}"
    assert trained.describe_notes(claim, records) == words
