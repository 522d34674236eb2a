"""What figures of layers, heads and the cosine law read and keep of models, each on a few numbers that are unlike."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from anisoscope.errors import ModelError, OutputError
from anisoscope.runs.job import Job
from anisoscope.store import as_records
from anisoscope.sums import isotropic
from anisoscope_papers.beyond import causes
from anisoscope_papers.godey2024 import (
    biased_block,
    checkpoints,
    fig01_04_layers,
    fig05_16_drift,
    fig06_bias,
    fig11_12_trajectories,
    fig17_18_cosine_law,
    layer_curves,
)
from anisoscope_papers.godey2024.fig17_18_cosine_law import Law, Points
from anisoscope_papers.godey2024.layer_curves import Systems
from anisoscope_papers.study import Context
from anisoscope_papers.training.train_small import BRIEF, LONG, PART


@pytest.fixture
def context(tmp_path):
    return Context(tmp_path / "study", tmp_path / "cache")


# ---- how figures are declared ----------------------------------------------------------------------------------------


def test_figures_5_and_16_ask_for_their_own_coefficient_of_the_same_systems():
    for study, kind in zip(
        fig05_16_drift.STUDIES, ("spearman", "pearson"), strict=True
    ):
        assert set(study.settings) == {"quick", "long", "paper", "packaged"}
        assert study.settings == fig05_16_drift._build_settings(kind)
        for name, asked in study.settings.items():
            assert asked.kind == kind
            of_figures = fig01_04_layers.SETTINGS.values()
            assert asked.figures == tuple(figure[name] for figure in of_figures)


def test_every_figure_of_layers_names_its_models_their_corpus_and_their_stand_ins():
    small = {
        "fig1": ("token-lm",),
        "fig2": ("byte-lm", "token-lm"),
        "fig3a": ("speech-transformer",),
        "fig3b": ("vit",),
        "fig4": ("resnet", "convnext", "speech-cnn"),
    }
    text = "wikitext-103"
    paper = {
        "fig1": (text, "bert-base roberta-base gpt2 t5-base"),
        "fig2": (text, "character-bert canine-s canine-c manta-base byt5-base"),
        "fig3a": ("common-voice", "wav2vec2-base hubert-base whisper-base"),
        "fig3b": ("imagenet-1k", "vit-base beit-base deit-base mit-b0"),
        "fig4": (
            "imagenet-1k",
            "resnet-50 efficientnet-b0 cvt-13 convnext-tiny van-base",
        ),
    }
    figures = {study.name: study.settings for study in fig01_04_layers.STUDIES}
    assert figures.keys() == paper.keys()
    for name, settings in figures.items():
        asked = settings["paper"]
        assert (asked.corpus, " ".join(asked.models)) == paper[name]
        # One vector for each image in figure 4 alone, of the small models too.
        flatten = "image" if name == "fig4" else "position"
        for which, recipe in (("quick", BRIEF), ("long", LONG)):
            assert settings[which].small == small[name]
            assert (settings[which].recipe, settings[which].flatten) == (
                *(recipe, flatten),
            )
        assert asked.flatten == flatten and asked.limit is None
    beside = figures["fig1"]["quick"]
    assert (beside.models, beside.corpus, beside.limit) == (
        *(("builtin:minilm",), "builtin:python-docs", 60),
    )
    held_out = {
        name: (settings["held-out"].small, settings["held-out"].recipe)
        for name, settings in figures.items()
        if "held-out" in settings
    }
    assert held_out == {
        "fig3a": (("speech-masked",), PART),
        "fig3b": (("vit-photographs", "vit-masked"), PART),
    }


def test_packaged_networks_are_shown_on_data_of_their_kind():
    reactions, clips = "reactions/valid.jsonl.gz", "speech/librispeech_test_other"
    photographs, images = "cifar10/test.parquet", "vision/imagenet_sample"
    resnets = ("weights/resnet20-12fca82f.th", "weights/resnet56-4bfd9763.th")
    lite = ("builtin:efficientnet-lite0",)
    reads = tuple(
        f"builtin:{name}"
        for name in (
            *("rxnfp-pretrained", "rxnfp-finetuned", "rxnfp-finetuned-10k"),
            "rxnmapper",
        )
    )
    heard = ("builtin:distillmos", "builtin:whisper-tiny.en")
    found = {}
    for name, settings in fig01_04_layers.SETTINGS.items():
        asked = settings["packaged"]
        found[name] = [
            (each.packaged, each.corpus, each.limit, each.flatten, bool(each.relus))
            for each in (asked, *asked.others)
        ]
    assert found == {
        "fig1": [
            (reads, reactions, 400, "position", False),
            *[
                (
                    *(("builtin:minilm",), "wikitext/wiki.valid.raw.txt.gz"),
                    *(30, "position", False),
                )
            ],
        ],
        "fig2": [
            (
                *(("builtin:antiberty",), "antibodies/chains.jsonl.gz", 200),
                *("position", False),
            )
        ],
        "fig3a": [(heard, clips, None, "position", False)],
        "fig3b": [(("builtin:saliency-vit",), images, 100, "position", False)],
        "fig4": [
            (resnets, photographs, 400, "image", False),
            (resnets, images, 400, "image", False),
            (("builtin:crepe-tiny",), clips, 20, "position", False),
            (lite, images, 60, "image", False),
            (lite, images, 30, "image", True),
        ],
    }


def test_a_variant_of_the_block_differs_from_it_in_one_thing():
    full = ("bert:full-embedding",)
    paper = biased_block.SETTINGS["paper"]
    assert (paper.seeds, paper.sizes[0].sequences) == (8, 16)
    found = {
        name: (
            *(asked.systems, asked.seeds, asked.norms == biased_block.COARSE),
            [size.named("x") for size in asked.sizes],
            {size.sequences for size in asked.sizes},
        )
        for name, asked in biased_block.SETTINGS.items()
    }
    readings = biased_block.READINGS
    assert found == {
        "quick": (readings, 5, True, ["x"], {4}),
        "paper": (readings, 8, False, ["x"], {16}),
        "architectures": (
            *((*full, "gpt2", "llama", "t5", "vit"), 5, True, ["x"], {4}),
        ),
        "depth": ((*full, "gpt2"), 4, True, ["x × 12"], {4}),
        "scale": (
            *(full, 5, True, ["x, scale 0.5", "x", "x, scale 2", "x, scale 4"], {4}),
        ),
        "heads": (full, 5, True, ["x, heads 3", "x", "x, heads 48"], {4}),
        "no-type": (("bert:no-type",), 8, False, ["x"], {16}),
    }


def test_a_series_is_read_as_its_settings_say():
    asked = checkpoints.SETTINGS
    quick, paper = asked["quick"], asked["paper"]
    assert (quick.corpus, quick.limit, quick.kind, quick.recipe) == (
        *("builtin:python-docs", 60, "token-lm", BRIEF),
    )
    assert (paper.corpus, paper.sequences, paper.share) == ("wikitext-103", 128, None)
    assert asked["paper-sampled"] == replace(paper, share=0.2)
    assert paper.shown == (0.0, 0.02, 0.1, 1.0)
    cells = checkpoints.CAUSAL["causal"].cells
    assert (cells.arms, cells.seeds, cells.recipe) == (("base",), 6, causes.FULL)


def test_figures_of_the_law_ask_for_dimensions_and_for_trained_systems():
    law, points = (study.settings for study in fig17_18_cosine_law.STUDIES)
    dimensions = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    assert law == {
        "quick": Law(dimensions, 2000, 0),
        "paper": Law(dimensions, 20_000, 0),
    }
    assert points["quick"].limit == 60
    of_modality = {
        "bert-base": "wikitext-103",
        "hubert-base": "common-voice",
        "vit-base": "imagenet-1k",
    }
    assert of_modality.items() <= dict(points["paper"].models).items()
    assert points["paper"].limit is None and not points["paper"].figures
    packaged = points["packaged"]
    assert not packaged.models and packaged.limit is None
    shown = [each.packaged for each in packaged.figures]
    assert len(shown) == 6 and ("builtin:crepe-tiny",) in shown
    assert all(each.flatten == "position" for each in packaged.figures)


def test_odd_figures_show_clouds_and_even_ones_paths_of_their_own_plane():
    found = {}
    for number, basis in fig11_12_trajectories.FIGURES.items():
        study = fig11_12_trajectories._declare_study(number, basis)
        asked = getattr(study.judge, "args", None) or (study.judge.__name__,)
        assert study.draw.args == (study.name, *study.measure.args)
        found[study.name] = (*study.measure.args, *asked)
    assert found == {
        "fig11": ("union", True, "judge_clouds"),
        "fig12": ("union", False, "judge_paths"),
        "fig19": ("key", True, "fig19", "svd.key.agreement"),
        "fig20": ("key", False, "fig20", "svd.key.path_agreement"),
        "fig21": ("query", True, "fig21", "svd.query.agreement"),
        "fig22": ("query", False, "fig22", "svd.query.path_agreement"),
    }


def test_paths_are_recorded_with_the_losses_of_their_checkpoints(monkeypatch, context):
    def answer(place, name, expected):
        def call(*given):
            assert given == expected
            return pd.DataFrame({"metric": [name]})

        monkeypatch.setattr(place, name, call)

    monkeypatch.setattr(checkpoints, "measure", lambda *given: given)
    series = checkpoints.SETTINGS["bytes"]
    pieces = (series, context)
    answer(checkpoints, "read_records", (pieces, fig11_12_trajectories.COSINES))
    answer(checkpoints, "read_losses", (pieces,))
    answer(fig11_12_trajectories, "measure_planes", (pieces, ("key",)))
    found = fig11_12_trajectories.measure("key", False, series, context)
    names = ["read_records", "read_losses", "measure_planes"]
    assert found["metric"].tolist() == names
    # Clouds are of the two heads that end furthest apart, in the same plane as the paths.
    chosen = SimpleNamespace(chosen=lambda: {"similar": (2, 1), "opposite": (1, 0)})
    monkeypatch.setattr(
        fig11_12_trajectories, "Alignment", SimpleNamespace(of=lambda _: chosen)
    )
    heads = chosen.chosen().values()
    monkeypatch.setattr(
        fig11_12_trajectories,
        "measure_clouds",
        lambda *given: pd.DataFrame(
            {"metric": [str((*given[:2], *given[2]) == (pieces, "key", *heads))]}
        ),
    )
    found = fig11_12_trajectories.measure("key", True, series, context)
    assert found["metric"].tolist() == [*names, "True"]


@pytest.mark.parametrize(
    ("name", "kind", "limit", "sequences", "recipe"),
    [
        # 60 documents are measured of the text: fewer than the probe has windows.
        ("bytes", "byte-lm", 60, 128, LONG),
        ("vision", "vit", 128, None, LONG),
        ("speech", "speech-transformer", 128, None, LONG),
        ("photographs", "vit-masked", 128, None, PART),
        ("clips", "speech-masked", 5, None, PART),
    ],
)
def test_a_probe_is_of_units_that_are_measured_elsewhere_too(
    name, kind, limit, sequences, recipe
):
    found = checkpoints.SETTINGS[name]
    assert (found.kind, found.limit, found.sequences) == (kind, limit, sequences)
    assert found.recipe == replace(recipe, seeds=6) and not found.checkpoints
    assert found.corpus == checkpoints.KINDS[kind].corpus


def test_small_models_stand_in_for_the_paper_s_in_the_same_way():
    paper = Systems(("a",), "c", flatten="image")
    found = layer_curves.build_settings(paper, ["resnet"])
    quick = Systems(flatten="image", small=("resnet",), recipe=BRIEF)
    assert found == {
        "quick": quick,
        "long": replace(quick, recipe=LONG),
        "paper": paper,
    }
    own = Systems(("b",), "d", limit=3)
    found = layer_curves.build_settings(paper, ["resnet", "vit"], own)
    assert found["quick"] == replace(own, small=("resnet", "vit"))


@pytest.mark.parametrize("flatten", ["image", "position"])
def test_a_run_is_shared_by_figures_that_flatten_maps_alike(flatten):
    needs = Systems(("resnet-50", "cvt-13"), "imagenet-1k", flatten=flatten).needs()
    assert [need.name for need in needs[:2]] == [
        "microsoft/resnet-50",
        "microsoft/cvt-13",
    ]
    assert [list(need.work) for need in needs[:2]] == [
        [f"resnet-50 × imagenet-1k {flatten}"],
        [f"cvt-13 × imagenet-1k {flatten}"],
    ]
    assert len(needs) == 3 and not needs[2].work


# ---- checkpoints of a series -----------------------------------------------------------------------------------------


def make_measurement(sites, points):
    """A measurement of two groups, one token policy and two heads of three dimensions, drawn by site."""
    drawn = torch.Generator().manual_seed(0)
    terms = {}
    for site in sites:
        shapes = {"vector": (2, 1, 2, 3), "n": (2, 1, 2), "head_moment": (2, 2, 3, 3)}
        for term, shape in shapes.items():
            x = torch.rand(shape, generator=drawn, dtype=torch.float64) + 1
            terms[site.name, term] = x
    reservoirs = {}
    for place, name in points:
        vectors = reservoirs.setdefault(place, SimpleNamespace(vectors={})).vectors
        vectors[name] = torch.randn(5, 2, 3, generator=drawn)
    return SimpleNamespace(
        sites={site.name: site for site in sites},
        sums=SimpleNamespace(terms=terms),
        reservoirs=reservoirs,
    )


def make_site(stack, layer, quantity, stage="raw", kind="self"):
    name = f"{stack}.{kind}.{layer}.{quantity}.{stage}"
    return SimpleNamespace(
        name=name, stack=stack, layer=layer, quantity=quantity, stage=stage, kind=kind
    )


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("sampled", [False, True])
def test_heads_are_kept_of_the_first_stack_s_own_queries_and_keys(
    monkeypatch, tmp_path, sampled, common
):
    query, key, later = (
        make_site("decoder", 1, "query"),
        make_site("decoder", 1, "key"),
        make_site("decoder", 2, "query"),
    )
    others = [
        make_site("decoder", 1, "query", "rotated"),
        make_site("decoder", 1, "query", kind="cross"),
        make_site("encoder", 1, "query"),
    ]
    # A sample of the whole stack, or one of a site's own; none of the later layer.
    places = {site.name: "decoder" if common else site.name for site in (query, key)}
    points = [(place, name) for name, place in places.items()]
    made = make_measurement([query, key, later, *others], points)
    asked = []
    monkeypatch.setattr(
        checkpoints,
        "Measurement",
        SimpleNamespace(restore=lambda *given: asked.append(given) or made),
    )
    path = tmp_path / "heads.safetensors"
    checkpoints._write_heads("sums", "settings", path, sampled=sampled)
    found = load_file(path)
    assert asked == [("sums", "settings")]
    names = {f"1 {side} {what}" for side in ("query", "key") for what in WHAT}
    assert found.keys() == names | {"2 query mean", "2 query moment"}
    for site in (query, key, later):
        name = f"{site.layer} {site.quantity}"
        terms = made.sums.terms
        total, count = (
            (terms[site.name, term][0] + terms[site.name, term][1])[0]
            for term in ("vector", "n")
        )
        for head in range(2):
            mean = total[head] / count[head]
            torch.testing.assert_close(found[f"{name} mean"][head], mean)
            moment = terms[site.name, "head_moment"]
            expected = moment[0, head] + moment[1, head]
            if site is not later:
                vectors = made.reservoirs[places[site.name]].vectors[site.name]
                assert torch.equal(found[f"{name} points"], vectors)
                if sampled:
                    of_head = vectors[:, head].double()
                    expected = sum(torch.outer(x, x) for x in of_head)
            torch.testing.assert_close(found[f"{name} moment"][head], expected)


WHAT = ("mean", "moment", "points")


def test_records_of_a_series_are_of_heads_of_the_first_stack(monkeypatch):
    rows = []
    wanted = {"metric": "m", "kind": "self", "stack": "decoder", "site": "scores"}
    for number, change in enumerate(
        (
            {},
            {"stack": "encoder"},
            {"kind": "cross"},
            {"site": "hidden"},
            {"metric": "n"},
            {"component": "1"},
            {"site": "query.raw"},
        )
    ):
        rows.append(wanted | {"value": float(number)} | change)
    frame = as_records(pd.DataFrame(rows))
    folders = {
        "first": frame,
        "second": frame.assign(value=frame["value"] + 10),
    }
    monkeypatch.setattr(
        checkpoints, "RunFolder", lambda name: SimpleNamespace(records=folders[name])
    )
    pieces = [checkpoints.Piece(0, 0, "first"), checkpoints.Piece(5, 0, "second")]
    found = checkpoints.read_records(pieces, ["m"])
    assert found["value"].tolist() == [0, 6, 10, 16]


def test_seeds_that_end_at_other_steps_are_named_with_the_last_of_all():
    with pytest.raises(checkpoints.UsageError) as error:
        checkpoints._require_same_end("runs/x", {2: 1500, 0: 3000, 1: 20})
    assert (
        "every seed of runs/x at the same last step; got "
        "seed 1 at step 20 of 3,000, seed 2 at step 1,500 of 3,000." in str(error.value)
    )
    checkpoints._require_same_end("runs/x", {0: 7, 1: 7})
    checkpoints._require_same_end("runs/x", {})


# ---- runs of layers ----


def test_numbers_without_a_group_are_kept_beside_the_run_and_its_sums_are_not(
    monkeypatch, context
):
    context = replace(context, device="cuda", batch_tokens=77)
    given = {"run": "r", "model": "m", "revision": "v", "seed": 4, "step": 70}
    given |= {"corpus": "c", "stack": "encoder", "layer": 1}
    wanted = {"metric": "mean_cosine", "site": "hidden", "value": 1.0}
    records = as_records(
        pd.DataFrame(
            [
                given | wanted | change
                for change in (
                    *({}, {"site": "final"}, {"site": "pre_relu", "metric": "drift"}),
                    *({"head": 0}, {"component": "1"}, {"metric": "partition"}),
                    {"site": "query.raw"},
                )
            ]
        )
    )
    folder = context.cache / "run"
    calls, tabulated = [], []

    def run(job, **how):
        assert (job.device, job.batch_tokens) == ("cuda", 77)
        if not folder.exists() or how.get("overwrite"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "sums.safetensors").touch()
        calls.append(how)
        return SimpleNamespace(folder=folder, records=records, manifest={})

    def tabulate(sums, settings):
        assert sums.exists() and settings == Systems().settings()
        tabulated.append(sums)
        row = {"metric": "drift.left_out", "component": "3", "value": 9.0}
        return as_records(pd.DataFrame([row | {"stack": "encoder", "layer": 1}]))

    code = ["code"]
    monkeypatch.setattr(layer_curves, "run", run)
    monkeypatch.setattr(layer_curves, "tabulate_left_out", tabulate)
    monkeypatch.setattr(layer_curves, "hash_measuring_code", lambda _: code[0])
    job = Job("m", corpus="c", settings=Systems().settings())
    usual = {"root": context.cache, "resume": True, "keep_sums": True}
    again = {"output": folder, "overwrite": True, "keep_sums": True}
    for expected, times in (([usual], 1), ([usual], 1), ([usual, again], 2)):
        # The third time our own code is another, and the sums were deleted.
        code[0] = "code" if times == 1 else "other code"
        calls.clear()
        found = layer_curves.run_measurement(job, context)
        assert calls == expected and len(tabulated) == times
        assert not (folder / "sums.safetensors").exists()
        seen = found[["metric", "site", "component"]].fillna("").to_numpy().tolist()
        assert seen == [
            ["mean_cosine", "hidden", ""],
            ["mean_cosine", "final", ""],
            ["drift", "pre_relu", ""],
            ["drift.left_out", "", "3"],
        ]
        for name, value in given.items():
            assert set(found[name]) == {value}


@pytest.mark.parametrize("name", ["builtin:whisper-tiny.en", "weights/net-0123abcd.th"])
def test_a_packaged_network_and_its_untrained_twin_read_the_same(
    monkeypatch, context, name
):
    hears = name.startswith("builtin:")
    jobs = []

    def measure(job, given):
        assert given is context
        jobs.append((job.model, job.corpus, job.limit, job.untrained))
        rows = [
            {"stack": stack, "corpus": "read", "value": 1.0, "metric": "drift"}
            for stack in ("encoder", "decoder")
        ]
        return as_records(pd.DataFrame(rows))

    monkeypatch.setattr(layer_curves, "run_measurement", measure)
    monkeypatch.setattr(layer_curves, "_write_transcripts", lambda *_: "heard")
    monkeypatch.setattr(layer_curves, "find_path", lambda _: "/data/net.th")
    systems = Systems(corpus="speech/clips/test.parquet", limit=7)
    parts = list(layer_curves._measure_packaged(name, systems, context))
    read = "heard" if hears else systems.corpus
    where = name if hears else "/data/net.th"
    assert jobs == [(where, read, 7, True), (where, read, 7, False)]
    label = "whisper-tiny.en" if hears else "net"
    for rows, state in zip(parts, ("untrained", "trained"), strict=True):
        assert rows["model"].tolist() == [
            f"{label}{f', {stack}' if hears else ''} on clips, {state}"
            for stack in ("encoder", "decoder")
        ]
        assert set(rows["corpus"]) == {systems.corpus} and set(rows["seed"]) == {0}
        pd.testing.assert_series_equal(rows.dtypes, as_records(rows).dtypes)

    def fail(*_):
        raise error

    monkeypatch.setattr(layer_curves, "run_measurement", fail)
    error = ModelError("a model", "none", "install it")
    assert not list(layer_curves._measure_packaged(name, systems, context))
    assert [row["model"] for row in context.lacking] == [f"{label} on clips"]
    # A damaged file of ours is no network that cannot be had.
    error = OutputError("a file", "another", "remove it")
    with pytest.raises(OutputError):
        list(layer_curves._measure_packaged(name, systems, context))


def test_a_kind_whose_data_are_missing_has_one_row_that_says_so(monkeypatch, context):
    kind = SimpleNamespace(label="small net", missing="no clips")
    monkeypatch.setitem(layer_curves.KINDS, "kind", kind)
    (rows,) = layer_curves._measure_small("kind", Systems(small=("kind",)), context)
    assert rows[["model", "metric", "component"]].to_numpy().tolist() == [
        ["small net", "skipped", "no clips"],
    ]


# ---- transcripts -----------------------------------------------------------------------------------------------------


def test_transcripts_are_kept_by_network_corpus_and_limit(monkeypatch, context):
    made = []

    def write(name, corpus, path, *, limit):
        made.append((name, corpus, limit))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")

    monkeypatch.setattr(layer_curves.transcripts, "write_transcripts", write)
    monkeypatch.setattr(layer_curves, "find_path", lambda name: f"/data/{name}")
    asked = [("builtin:w", "a", 3), ("builtin:w", "a", 4), ("builtin:w", "b", 3)]
    asked += [("builtin:v", "a", 3)]
    paths = set()
    for name, corpus, limit in [*asked, *asked]:
        systems = Systems(corpus=corpus, limit=limit)
        paths.add(layer_curves._write_transcripts(name, systems, context))
    assert made == [(name, f"/data/{corpus}", limit) for name, corpus, limit in asked]
    assert len(paths) == 4
    assert all("/cache/transcripts/" in path for path in paths)


# ---- fixed points ----------------------------------------------------------------------------------------------------


def test_a_fixed_point_is_the_first_crossing_unless_another_is_asked_for():
    rows = []
    for seed, component in ((3, "1"), (3, "2"), (5, "1")):
        value = 10.0 * seed + int(component)
        for model, more in (("bert", 0), ("gpt2", 100)):
            place = {"model": model, "seed": seed, "component": component}
            metric = "fixed_point.mean_norm"
            rows.append({"metric": metric, "value": value + more, **place})
    records = as_records(pd.DataFrame(rows))
    found = fig06_bias._select_fixed_point(records, "bert", "mean_norm")
    assert found.to_dict() == {3: 31.0, 5: 51.0}
    found = fig06_bias._select_fixed_point(records, "bert", "mean_norm", "2")
    assert found.to_dict() == {3: 32.0}


def test_crossings_are_numbered_and_have_the_norm_of_their_own_kind():
    def at(norms):
        norms = np.array(norms)
        # Tokens cross at 2 and 6, the norm of the mean at 3.
        token = norms + (norms - 2) * (norms - 6) / 10
        mean = np.full(len(norms), 3.0)
        return tuple(np.stack([norms, out], 1) for out in (token, mean))

    grid = (0.0, 1.0, 4.0, 9.0)
    rows = biased_block.list_fixed_points(grid, at(grid), lambda norm: at((norm,)))
    found = {(row["metric"], row.get("component")): row["value"] for row in rows}
    expected = {
        ("token_norm.crossings", None): 2,
        ("token_norm", "1"): 2,
        ("token_norm.norm", "1"): 2,
        ("token_norm", "2"): 6,
        ("token_norm.norm", "2"): 6,
        ("mean_norm.crossings", None): 1,
        ("mean_norm", "1"): 3,
        ("mean_norm.norm", "1"): 3,
    }
    assert found == {
        (f"fixed_point.{name}", number): pytest.approx(value, rel=1e-3)
        for (name, number), value in expected.items()
    }
    assert {row["site"] for row in rows} == {"hidden"}


@pytest.mark.parametrize("biased", [False, True])
def test_rows_of_attention_are_averaged_and_extremes_are_of_sequences(biased):
    draw = np.random.default_rng(0)
    names = ("entropy", "entropy_normalised", "row_max", "row_min")
    names += ("sequence_max", "sequence_min", "rows", "sequences")
    terms = {name: draw.uniform(1, 2, (3, 2)) for name in names}
    subject = SimpleNamespace(position_bias=biased)
    found = biased_block.Pass._average_rows(SimpleNamespace(subject=subject), terms)
    expected = {
        f"attention.{name}": terms[name] / terms[count]
        for name, count in (
            *(("row_max", "rows"), ("row_min", "rows")),
            *(("sequence_max", "sequences"), ("sequence_min", "sequences")),
            # Of a bias of positions alone: else they come from the scores.
            *((("entropy", "rows"), ("entropy_normalised", "rows")) if biased else ()),
        )
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def test_histograms_are_of_the_norms_that_are_shown_and_of_filled_bins(monkeypatch):
    terms = {
        "pooled": np.array([[5, 0, 0], [0, 3.0, 1], [0, 0, 2]]),
        "centred": np.array([[0, 6, 0], [4.0, 0, 0], [0, 0, 0]]),
    }
    monkeypatch.setattr(biased_block.row_scores, "compute_metrics", lambda *_: {})
    subject = SimpleNamespace(fed=torch.zeros(1, 1, 1), position_bias=False)
    asked = biased_block.Pass(subject, (5.0, 0.0, 10.0), 8)
    asked.sums = SimpleNamespace(at=lambda _: terms)
    site = SimpleNamespace(stage="raw", layer=2, name="s")
    rows = list(asked._attention(site))
    assert {(row["site"], row["layer"]) for row in rows} == {("attention", 2)}
    pooled, within = "attention.score_histogram", "attention.score_histogram_within"
    assert [(row["metric"], row["component"], row["value"]) for row in rows] == [
        *((pooled, "0 1", 3), (pooled, "0 2", 1), (within, "0 0", 4)),
        (pooled, "10 2", 2),
    ]


# ---- the cosine law --------------------------------------------------------------------------------------------------


def test_samples_of_the_law_are_drawn_from_its_seed(context):
    law = Law(dimensions=(4, 64, 144), pairs=50, seed=3)
    reports = []
    context = replace(context, progress=lambda *given: reports.append(given))
    records = fig17_18_cosine_law.measure_law(law, context)
    assert reports == [("d = 4", 1, 3), ("d = 64", 2, 3), ("d = 144", 3, 3)]
    assert set(records["n_vectors"]) == {100} and set(records["seed"]) == {3}
    drawn = np.random.default_rng(3)
    for d in law.dimensions:
        x, y = drawn.standard_normal((2, 50, d))
        cosines = [
            a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            for a, b in zip(x, y, strict=True)
        ]
        rows = records[records["model"] == f"isotropic d = {d}"].set_index("metric")
        sampled = rows.loc["cosine_law.sampled_q95", "value"]
        assert sampled == pytest.approx(np.quantile(cosines, 0.95))
        assert rows.loc["cosine_law.q95", "value"] == pytest.approx(isotropic.q95(d))
        assert rows.loc["cosine_law.dimension", "value"] == d
        # The density is drawn as far as 6 standard deviations, 6 / √d, and not beyond 1.
        places = rows.loc["cosine_law.density", "component"].astype(float)
        assert places.min() == -places.max()
        assert places.max() == pytest.approx(min(1, 6 / d**0.5))
        assert len(places) == 161


def test_the_law_is_judged_in_the_order_of_dimensions_and_not_of_their_names():
    rows = []
    p = {4: 0.03, 16: 0.9, 100: 0.2}
    for d, q95, distance in ((16, 0.4, 0.01), (100, 0.16, 0.03), (4, 0.8, 0.02)):
        numbers = {"q95": q95, "dimension": d, "ks_distance": distance, "ks_p": p[d]}
        for name, value in numbers.items():
            row = {"metric": f"cosine_law.{name}", "value": float(value)}
            rows.append(row | {"model": f"isotropic d = {d}", "n_vectors": 80})
    shrinks, closed = fig17_18_cosine_law.judge_law(as_records(pd.DataFrame(rows)))
    assert (shrinks.outcome, shrinks.value) == ("identity", 0.16)
    assert shrinks.statistic == "q95 at d = 100:"
    assert shrinks.reason == "q95·√d goes from 1.600 (d = 4) to 1.600 (d = 100)"
    # Three times the smallest p, after Holm: nothing departs from the law.
    assert closed.outcome == "identity" and closed.p == pytest.approx(0.09)
    assert (closed.value, closed.n) == (0.03, 40)


def test_points_are_of_trained_models_under_their_own_names(monkeypatch, context):
    keep = {"metric": "drift", "site": "hidden", "token_policy": "all", "value": 1.0}
    rows = [
        keep | {"model": "small x, trained", "layer": 1},
        keep | {"model": "small x, untrained", "layer": 2},
        keep | {"model": "small x, trained", "layer": 3, "token_policy": "content"},
        keep | {"model": "small x, trained", "layer": 4, "head": 0},
        keep | {"model": "small x, trained", "layer": 5, "site": "pre_relu"},
        keep | {"model": "small x, trained", "layer": 6, "site": "final"},
    ]
    asked = []

    def measure(systems, given):
        assert given is context
        asked.append(systems)
        return as_records(pd.DataFrame(rows))

    monkeypatch.setattr(fig17_18_cosine_law, "measure", measure)
    figures = (Systems(("a",)), Systems(("b",)))
    found = fig17_18_cosine_law.measure_points(Points((), None, figures), context)
    assert asked == list(figures)
    assert found["model"].tolist() == ["small x"] * 4
    assert found["layer"].tolist() == [1, 6, 1, 6]


def test_systems_with_a_vector_for_each_position_are_looked_at_one_by_one():
    inner = Systems(("c",), others=(Systems(("d",)),))
    systems = Systems(
        ("a",), flatten="image", others=(Systems(("b",)), replace(inner, others=()))
    )
    found = fig17_18_cosine_law.keep_by_position(systems)
    assert found == (Systems(("b",)), Systems(("c",)))
    found = fig17_18_cosine_law.keep_by_position(replace(systems, flatten="position"))
    assert found == (Systems(("a",)), Systems(("b",)), Systems(("c",)))


def test_a_model_is_named_and_measured_with_the_context_s_device(monkeypatch, context):
    jobs, reports = [], []
    context = replace(
        context,
        device="cuda",
        batch_tokens=77,
        progress=lambda *given: reports.append(given),
    )

    def measure(job, _context, measure_it):
        assert measure_it.keywords == {"root": context.cache, "resume": True}
        jobs.append(job)
        row = {"metric": "drift", "site": "hidden", "token_policy": "all", "value": 1.0}
        rows = [row | {"model": job.model}, row | {"metric": "x", "model": "no"}]
        return [SimpleNamespace(records=as_records(pd.DataFrame(rows)))]

    monkeypatch.setattr(fig17_18_cosine_law, "measure_if_available", measure)
    models = (("m", "c"), ("n", "d"))
    found = fig17_18_cosine_law.measure_trained_layers(models, 9, context)
    assert [(job.model, job.corpus, job.limit) for job in jobs] == [
        ("m", "c", 9),
        ("n", "d", 9),
    ]
    assert {(job.device, job.batch_tokens) for job in jobs} == {("cuda", 77)}
    assert reports == [("m", 1, 2), ("n", 2, 2)]
    assert found["model"].tolist() == ["m", "n"]


# ---- what is judged of sites, and how far pieces are -----------------------------------------------------------------


def test_a_site_is_judged_of_trained_models_alone(monkeypatch):
    asked = []
    rows = {
        site: pd.DataFrame({"model": [f"{site} a{state}" for state in STATES]})
        for site in ("hidden", "pre_relu")
    }
    monkeypatch.setattr(
        fig01_04_layers.layer_curves,
        "select_curves",
        lambda _records, site="hidden": rows[site],
    )
    monkeypatch.setattr(
        fig01_04_layers.layer_curves,
        "make_layer_tests",
        lambda claim, given: asked.append((claim.site, given["model"].tolist())) or [],
    )
    monkeypatch.setattr(
        fig01_04_layers,
        "COMPARISONS",
        dict.fromkeys(fig01_04_layers.COMPARISONS, lambda *_: ()),
    )
    monkeypatch.setattr(
        fig01_04_layers.layer_curves, "make_undecided", lambda *_: ["undecided"]
    )
    fig01_04_layers.judge("fig4", as_records(pd.DataFrame([{"metric": "x"}])))
    assert {site for site, _ in asked} == {"", "pre_relu"}
    for site, models in asked:
        place = site or "hidden"
        assert models == [f"{place} a", f"{place} a, trained"]


STATES = ("", ", trained", ", untrained")


def test_pieces_that_are_there_already_count_as_done(monkeypatch, tmp_path):
    reports, made = [], []
    context = Context(
        tmp_path,
        tmp_path / "cache",
        progress=lambda *given: reports.append(given),
    )
    settings = biased_block.BlockSettings(("a", "b"), seeds=2, norms=(0.0, 1.0))

    def run(_work, pieces, processes):
        for done, (path, *given) in enumerate(pieces, 1):
            made.append((*given[:3], given[3], processes))
            path.parent.mkdir(parents=True, exist_ok=True)
            frame = pd.DataFrame({"system": [given[0]], "seed": [given[2]]})
            frame.to_parquet(path)
            yield done

    monkeypatch.setattr(biased_block, "run_in_parallel", run)
    found = biased_block.run_experiment(settings, context)
    cells = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert list(zip(found["system"], found["seed"], strict=True)) == cells
    size = biased_block.Size()
    assert made == [(name, size, seed, (0.0, 1.0), None) for name, seed in cells]
    assert reports == [("untrained blocks", n, 4) for n in (1, 2, 3, 4)]
    reports.clear()
    made.clear()
    # Of three systems two are there: the third is counted after them.
    more = replace(settings, systems=("a", "c", "b"))
    found = biased_block.run_experiment(more, replace(context, device="cuda"))
    assert made == [("c", size, seed, (0.0, 1.0), 1) for seed in (0, 1)]
    assert reports == [("untrained blocks", n, 6) for n in (5, 6)]
    assert found["system"].tolist() == ["a", "a", "c", "c", "b", "b"]


def test_models_of_characters_are_compared_with_the_others_and_not_with_each_other(
    monkeypatch,
):
    systems = [
        ("canine", 0, "of canine"),
        ("byt5", 0, "of byt5"),
        ("bert", 0, "of bert"),
        ("byte-lm, trained", 1, "of small bytes"),
        ("token-lm, trained", 1, "of small tokens"),
        ("token-lm, trained", 2, "of other tokens"),
    ]
    monkeypatch.setattr(fig01_04_layers, "iter_systems", lambda _: systems)
    monkeypatch.setattr(
        fig01_04_layers, "_average_layers", lambda _records, layers: layers
    )
    monkeypatch.setattr(
        fig01_04_layers, "_subtract_replicates", lambda a, b: f"{a} less {b}"
    )
    monkeypatch.setattr(fig01_04_layers, "_test", lambda *given: given[1:])
    claim = SimpleNamespace(systems=("canine", "by"))
    found = list(fig01_04_layers._test_characters(claim, "records", "rows"))
    pairs = [(subject, theta) for subject, theta, _, _ in found]
    tokens = ("of small tokens", "of other tokens")
    own = [
        (f"{name} above {other}", f"of {name} less {theirs}")
        for name in ("canine", "byt5")
        for other, theirs in (
            ("bert", "of bert"),
            *(("token-lm", theirs) for theirs in tokens),
        )
    ]
    assert pairs == [
        *own,
        ("byte-lm above bert", "of small bytes less of bert"),
        # Of one seed alone, if both are small.
        ("byte-lm above token-lm", "of small bytes less of small tokens"),
    ]
    assert [(layers, seed) for _, _, layers, seed in found[-2:]] == [
        ("of small bytes", 1),
        ("of small bytes", 1),
    ]


def test_sequences_are_the_units_of_a_block_and_its_tokens_its_vectors(
    monkeypatch, context
):
    asked = []

    class Pass:
        sites = {"a": SimpleNamespace(stack="decoder")}  # noqa: RUF012

        def __init__(self, *given, **more):
            asked.append((given, more))

        def run(self):
            return self

        def rows(self):
            return [{"metric": "drift", "layer": 1, "value": 0.5}]

        def norm_pairs(self):
            return "pairs"

    def fixed(grid, pairs, again):
        assert (grid, pairs, again(7.0)) == ((0.0, 1.0), "pairs", "pairs")
        return [{"metric": "fixed_point.x", "value": 1.0}]

    subject = SimpleNamespace(fed=torch.zeros(3, 5, 8))
    monkeypatch.setattr(biased_block, "build_untrained", lambda *_: subject)
    monkeypatch.setattr(biased_block, "Pass", Pass)
    monkeypatch.setattr(biased_block, "list_fixed_points", fixed)
    size = biased_block.Size(blocks=2)
    context = replace(context, batch_tokens=77)
    found = biased_block.measure_piece("gpt2", size, 4, (0.0, 1.0), context)
    assert asked == [
        ((subject, (0.0, 1.0), 77), {}),
        ((subject, (7.0,), 77), {"norms_only": True}),
    ]
    assert found["metric"].tolist() == ["drift", "fixed_point.x"]
    assert set(found["n_units"]) == {3} and set(found["n_vectors"]) == {15}
    assert set(found["corpus"]) == {"uniform inputs 3 × 5 × 8"}
    assert set(found["model"]) == {"gpt2 × 2"} and set(found["seed"]) == {4}
    assert set(found["stack"]) == {"decoder"} and set(found["kind"]) == {"self"}
    assert set(found["token_policy"]) == {"all"}
