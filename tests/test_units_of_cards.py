"""What is published of runs: rows and sentences of an atlas, cards and badges, and the folder that is pushed."""

import importlib
import json
import math
from types import SimpleNamespace

import pandas as pd
import pytest

from anisoscope.errors import OutputError, UsageError
from anisoscope.report import atlas, card, pushing
from anisoscope.store import as_records, write_json, write_table
from anisoscope.wording import iter_rows

NAN = math.nan


# ---- an atlas


def network(name, **given):
    """A row of an atlas, in which every number is another one."""
    found = {"network": name, "stack": "encoder", "modality": "text", "family": "bert"}
    found |= {"layers": 14, "weakest": 0.11, "weakest_layer": 1, "strongest": 0.62}
    found |= {"strongest_layer": 7, "last": 0.43, "last_layer": 12, "final": 0.34}
    found |= {"dimension_share": 0.25, "centred": 0.06, "entropy": 0.77, "q95": 0.08}
    for value in (
        "weakest",
        "strongest",
        "last",
        "final",
        "dimension_share",
        "centred",
        "entropy",
    ):
        found[f"{value}_low"] = found[value] - 0.01
        found[f"{value}_high"] = found[value] + 0.02
    found |= {"cause": "the mean", "verdict": "anisotropic", "sink_heads": 5}
    return found | {"heads": 144, "n_units": 1234} | given


def test_networks_are_counted_by_cause_and_by_sinks():
    table = pd.DataFrame(
        [
            network("a", cause="the mean"),
            network("b", cause="the mean, 3 dimensions", sink_heads=0),
            network("c", cause="more than the mean, 1 dimension", sink_heads=1),
            network("d", cause="more than the mean", heads=NAN, sink_heads=NAN),
            network("e", cause="", verdict="isotropic", sink_heads=0),
            network("f", cause="the mean", verdict="undecided", sink_heads=0),
            network("g", cause="the mean", sink_heads=0),
        ]
    )
    assert atlas.describe_atlas(table) == [
        "5 of 7 networks are anisotropic in at least one layer.",
        "In 3 of these, centring removes the anisotropy of the layer with the highest A.",
        "In 2 of these, ten dimensions or fewer contribute more than half of the A of that layer.",
        "2 of the 6 networks whose attention was measured have a sink head.",
    ]
    assert atlas.describe_atlas(table[4:5]) == [
        "0 of 1 networks are anisotropic in at least one layer.",
        "0 of the 1 networks whose attention was measured have a sink head.",
    ]
    assert len(atlas.describe_atlas(table[3:4])) == 3


def test_cells_of_an_atlas_have_intervals_that_say_more_than_the_value():
    row = network(
        "n",
        last_low=0.43,
        final_low=0.34,
        final_high=0.34,
        centred_high=math.inf,
        entropy=NAN,
        cause=NAN,
        q95=NAN,
    )
    (row,) = iter_rows(pd.DataFrame([row]))
    # each cell is under its own head
    cells = dict(zip(atlas.HEAD, atlas._build_row("label", row), strict=True))
    assert cells == {
        "network": ("label", ""),
        "reads": ("text", ""),
        "family": ("bert", ""),
        "blocks": ("14", ""),
        "A weakest": (".110 @1", "[.100, .130]"),
        "A strongest": (".620 @7", "[.610, .640]"),
        # an end may be the value itself
        "A last block": (".430 @12", "[.430, .450]"),
        # without width, the ends say nothing more
        "A final norm": (".340", ""),
        "q95": ("–", ""),
        "share of 1 dimension": (".250", "[.240, .270]"),
        "A centred": (".060", ""),
        "carried by": ("–", ""),
        "sink heads": ("5 of 144", ""),
        "entropy": ("–", ""),
        "units": ("1,234", ""),
    }
    table = atlas.tabulate(pd.DataFrame([network("n"), network("n", stack="decoder")]))
    assert [line[0][0] for line in table.rows] == ["n, encoder", "n, decoder"]
    assert table.caption == (
        "A with its 95 % interval. The number after @ is the layer; layer 0 is the input of the first block."
    )


# ---- cards


def of_layers(**keys):
    rows = []
    for layer, value in ((1, 0.3), (2, 0.5)):
        place = {"stack": "encoder", "kind": "self", "site": "hidden", "layer": layer}
        place |= {"token_policy": "all", "n_vectors": 900, "n_units": 30 * layer}
        ends = {"value": value, "low": value - 0.01, "high": value + 0.02}
        law = {"metric": "mean_cosine.isotropic_q95", "value": 0.1}
        rows.append(place | ends | {"metric": "mean_cosine"} | keys)
        rows.append(place | law | keys)
    return as_records(pd.DataFrame(rows))


def test_cards_list_what_was_found_before_the_layers():
    from anisoscope.runs.findings import findings

    records = of_layers()
    listed = [f"- {found.text}" for found in findings(records, None)]
    assert len(listed) > 0
    table = [
        "",
        "| layer | A | 95 % interval | verdict |",
        "|---|---|---|---|",
        "| 1 | .300 | [.290, .320] | anisotropic |",
        "| 2 | .500 | [.490, .520] | anisotropic |",
    ]
    section = card.write_model_card(records, {"corpus": "texts"})
    assert section.splitlines() == [
        "## Geometry of its representations",
        "",
        "Measured with Anisoscope of an unknown version on texts (60 units).",
        "",
        *listed,
        *table,
    ]
    written = card.write_dataset_card(records, {"corpus": {}}, "me/x").splitlines()
    begin = written.index(
        "Measured with Anisoscope of an unknown version on an unnamed corpus (60 units)."
    )
    assert written[begin + 2 : begin + 2 + len(listed + table)] == [*listed, *table]
    assert "# Geometry of unnamed model" in written
    nothing = card.write_model_card(records[:0], {"corpus": {"name": "…/mine"}})
    assert nothing.splitlines()[2:] == [
        "Measured with Anisoscope of an unknown version on mine."
    ]


def test_findings_of_cards_name_tokens_by_their_words(monkeypatch):
    asked = []
    monkeypatch.setattr(card, "findings", lambda *given: asked.append(given) or [])
    manifest = {"tokens": {"7": "the"}}
    card.write_model_card(of_layers(), manifest)
    card.write_dataset_card(of_layers(), manifest, "me/x")
    assert [tokens for _, tokens in asked] == [{"7": "the"}] * 2


def test_models_are_named_without_their_folders():
    names = {
        "org/name": "org/name",
        "/a/b/c": "c",
        "…/c": "c",
        "name@main": "name@main",
        "": "unnamed model",
    }
    assert {name: card.name_model({"model": name}) for name in names} == names


def test_a_badge_is_of_the_strongest_layer_and_says_what_was_not_measured():
    badge = card.draw_badge(of_layers())
    assert "<title>anisotropy: A .500, layer 2, anisotropic</title>" in badge
    assert f'fill="{card.COLOURS["anisotropic"]}"' in badge
    bare = card.draw_badge(of_layers()[:0])
    assert "<title>anisotropy: not measured</title>" in bare
    assert f'fill="{card.COLOURS[""]}"' in bare


@pytest.mark.parametrize(
    ("law", "verdict", "colour"),
    [
        (0.1, "anisotropic", "#b45309"),
        (0.5, "undecided", "#52606d"),
        (0.9, "isotropic", "#117733"),
    ],
)
def test_a_badge_has_the_colour_of_its_verdict(law, verdict, colour):
    """Of the grey of a layer that is not decided, as of one that was not measured."""
    records = of_layers()
    is_law = records["metric"].eq("mean_cosine.isotropic_q95")
    badge = card.draw_badge(records.assign(value=records["value"].mask(is_law, law)))
    assert f", {verdict}</title>" in badge and f'fill="{colour}"' in badge


def test_layers_of_several_steps_have_a_column_for_their_step():
    """Seed and stack, which are the same in all rows, have none."""
    steps = [of_layers(seed=1, step=step) for step in (0, 2000)]
    section = card.write_model_card(pd.concat(steps, ignore_index=True), {})
    assert section.splitlines()[-6:] == [
        "| step | layer | A | 95 % interval | verdict |",
        "|---|---|---|---|---|",
        "| 0 | 1 | .300 | [.290, .320] | anisotropic |",
        "| 0 | 2 | .500 | [.490, .520] | anisotropic |",
        "| 2000 | 1 | .300 | [.290, .320] | anisotropic |",
        "| 2000 | 2 | .500 | [.490, .520] | anisotropic |",
    ]


def test_a_page_is_built_of_the_records_the_manifest_and_the_replicates(monkeypatch):
    """Without replicates means over heads would have no intervals."""
    report = importlib.import_module("anisoscope.report")
    records = of_layers()
    monkeypatch.setattr(report, "read_run", lambda _: (records, {"model": "m"}))
    monkeypatch.setattr(report, "read_replicates", lambda *given: given)
    monkeypatch.setattr(report, "write_run", lambda *given: given)
    results, folder, formats = report.build_page("folder", ("svg", "pdf"))
    assert results.records is records and results.manifest == {"model": "m"}
    assert results.replicates == ("folder", len(records))
    assert (folder, formats) == ("folder", ("svg", "pdf"))


# ---- what is pushed


def test_a_data_set_is_named_by_its_owner_and_name():
    names = {
        "me/x": "me/x",
        "datasets/me/x/": "me/x",
        "https://huggingface.co/datasets/me/x": "me/x",
        f"me/{'x' * 93}": f"me/{'x' * 93}",
    }
    assert {name: pushing.check_repository(name) for name in names} == names
    for wrong in (f"me/{'x' * 94}", "x", "a/b/c", "me/", "-me/x"):
        with pytest.raises(UsageError) as caught:
            pushing.check_repository(wrong)
        assert caught.value.got == repr(wrong.rstrip("/"))
        assert caught.value.cure == "the owner is you or an organisation of yours"


def test_folders_are_hidden_wherever_a_text_names_them():
    given = {
        "/home/me/model": "…/model",
        "/home/me/my model": "…/my model",
        "/model": "/model",
        "/a/model": "…/model",
        "/my folder/model": "…/model",
        "org/name": "org/name",
        "see /home/me/x.txt, or ~/a/b": "see …/x.txt, or …/b",
        "https://host/a/b": "https://host/a/b",
    }
    assert {text: pushing.hide_folders(text) for text in given} == given
    nested = {"a": ["/x/y/z", 3, {"b": "/x/y/z"}], "c": None}
    assert pushing.hide_folders(nested) == {"a": ["…/z", 3, {"b": "…/z"}], "c": None}


def a_run(folder, **manifest):
    """A finished run whose model, corpus and manifest name folders of this machine."""
    folder.mkdir(parents=True)
    records = of_layers(model="/home/me/net", corpus="/home/me/texts")
    write_table(folder / "records.parquet", records)
    write_json(folder / "manifest.json", {"model": "/home/me/net"} | manifest)
    (folder / pushing.REPLICATES).write_bytes(b"replicates")
    (folder / "reservoir.safetensors").write_bytes(b"a sample")


def test_what_is_published_names_no_folder_and_holds_no_vectors(tmp_path, monkeypatch):
    monkeypatch.setattr(pushing, "has_extra", lambda _: False)
    a_run(tmp_path / "run", corpus={"name": "/home/me/texts"}, command="x /home/me/y")
    a_run(tmp_path / "run" / "step-5")
    checkpoint = {"folder": "step-5", "subject": "/home/me/net", "step": 5, "seed": 0}
    described = {"checkpoints": [checkpoint], "model": "/home/me/net"}
    write_json(tmp_path / "run" / "series.json", described)
    made = pushing.write_publication(
        tmp_path / "run", tmp_path / "out", "me/x", licence="mit"
    )
    assert made.folder == tmp_path / "out"
    records = {"manifest.json", "records.parquet", pushing.REPLICATES}
    expected = records | {f"step-5/{name}" for name in records}
    assert set(made.files) == expected | {"series.json", "badge.svg", "README.md"}
    assert list(made.files) == sorted(made.files, key=lambda name: name.split("/"))
    assert made.files[pushing.REPLICATES] == len(b"replicates")
    for name in made.files:
        assert b"home" not in (tmp_path / "out" / name).read_bytes(), name
    kept = pd.read_parquet(tmp_path / "out" / "records.parquet")
    assert set(kept["model"]) == {"…/net"} and set(kept["corpus"]) == {"…/texts"}
    assert kept["value"].tolist() == of_layers()["value"].tolist()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))
    assert manifest == {
        "model": "…/net",
        "corpus": {"name": "…/texts"},
        "command": "x …/y",
    }
    readme = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert 'license: "mit"' in readme and 'snapshot_download("me/x"' in readme
    assert "report.html" not in readme and "# Geometry of net" in readme
    # the next publication takes the place of this one, and nothing of it is left
    (tmp_path / "out" / "old").touch()
    again = pushing.write_publication(tmp_path / "run", tmp_path / "out", "me/x")
    assert "old" not in again.files
    other = tmp_path / "other"
    other.mkdir()
    (other / "badge.svg").touch()
    with pytest.raises(OutputError) as caught:
        pushing.write_publication(tmp_path / "run", other, "me/x")
    assert str(caught.value) == (
        f"expected {other} to be empty; got files that anisoscope push did not write. Cure: choose another --output"
    )
    assert (other / "badge.svg").exists()
    with pytest.raises(OutputError, match="name a folder that anisoscope measure"):
        pushing.write_publication(tmp_path / "none", tmp_path / "out", "me/x")


def test_a_published_run_has_a_page_if_one_can_be_drawn(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(pushing, "has_extra", lambda name: name == "report")
    # by its file: the function of this name hides the package
    page = importlib.import_module("anisoscope.report")
    monkeypatch.setattr(page, "build_page", drawn.append)
    a_run(tmp_path / "run")
    pushing.write_publication(tmp_path / "run", tmp_path / "out", "me/x")
    assert drawn == [tmp_path / "out"]
    readme = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "`report.html` is the page of the run." in readme
    assert "license" not in readme


@pytest.fixture
def hub(monkeypatch):
    """A hub that notes what it was asked for, and fails as `error` says."""
    import huggingface_hub

    asked = SimpleNamespace(calls=[], private=True, error=None)

    class Api:
        endpoint = "https://hub"

        def create_repo(self, name, **how):
            asked.calls.append(("create", name, how))

        def dataset_info(self, name):
            asked.calls.append(("info", name))
            return SimpleNamespace(private=asked.private)

        def upload_folder(self, **how):
            if asked.error is not None:
                raise asked.error
            asked.calls.append(("upload", how))

    asked.token = "secret"
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: asked.token)
    monkeypatch.setattr(pushing, "require_extra", lambda *_: None)
    monkeypatch.setattr(pushing, "read_run", lambda _: (None, {"model": "/a/b/net"}))
    return asked


def test_a_data_set_is_made_private_and_filled_as_it_is_asked_for(hub, tmp_path):
    written = pushing.Publication(tmp_path, {})
    upload = {
        "repo_id": "me/x",
        "repo_type": "dataset",
        "folder_path": tmp_path,
        "commit_message": "Geometry of net, measured with Anisoscope",
    }
    assert pushing.push(written, "me/x") == "https://hub/datasets/me/x"
    assert hub.calls == [("upload", upload)]
    hub.calls.clear()
    pushing.push(written, "me/x", create=True)
    # None leaves the visibility to the owner's own default
    how = {"repo_type": "dataset", "private": None, "exist_ok": True}
    assert hub.calls == [("create", "me/x", how), ("upload", upload)]
    hub.calls.clear()
    pushing.push(written, "me/x", create=True, private=True)
    assert hub.calls == [
        ("create", "me/x", how | {"private": True}),
        ("info", "me/x"),
        ("upload", upload),
    ]
    hub.calls.clear()
    hub.private = False
    with pytest.raises(OutputError) as caught:
        pushing.push(written, "me/x", private=True)
    assert str(caught.value) == (
        "expected the data set me/x to be private; got a public one. Cure: make it private in its settings on the hub, "
        "name another one, or leave --private out"
    )
    assert hub.calls == [("info", "me/x")]
    hub.token = None
    with pytest.raises(OutputError, match="`hf auth login`, or set HF_TOKEN"):
        pushing.push(written, "me/x")


@pytest.mark.parametrize(
    ("fault", "got", "cure"),
    [
        (
            {"absent": True},
            "may read it",
            "--create makes it; a private one needs a token that may read it",
        ),
        (
            {"denied": True},
            "may write it",
            "give the token the right to write to it: hf.co/settings/tokens",
        ),
        ({}, "may read it", "of the hub"),
    ],
)
def test_a_hub_that_refuses_is_answered_with_what_helps(
    hub, monkeypatch, tmp_path, fault, got, cure
):
    from anisoscope.models.hub_faults import Fault

    hub.error = RuntimeError("x")
    found = Fault("may read it", "of the hub", **fault)
    monkeypatch.setattr(pushing, "classify_fault", lambda _: found)
    with pytest.raises(OutputError) as caught:
        pushing.push(pushing.Publication(tmp_path, {}), "me/x")
    error = caught.value
    assert error.expected == "the data set me/x to take the run"
    assert (error.got, error.cure) == (got, cure)
    assert error.__cause__ is hub.error
