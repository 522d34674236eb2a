"""What is finished is found before anything is loaded: the hub is asked for commits at most."""

import json
import shutil
from functools import partial

import datasets
import pandas as pd
import pytest
import torch
from hub_server import Hub
from program import NO_PAGE, Program
from transformers import BertConfig, BertModel, BertTokenizerFast

from anisoscope.errors import ModelError
from anisoscope.models import hub as of_hub
from anisoscope.models.hub import ModelPlace, _is_small, _verify_copy
from anisoscope.models.hub_faults import Fault, classify_fault
from anisoscope.models.series import expand

MODELS, TEXTS, NEWER = "a" * 40, "c" * 40, "d" * 40
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
PANEL = (
    "--panel",
    "hidden",
    "--max-length",
    "16",
    "--resume",
    "-q",
    "--format",
    "json",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A tiny BERT, another two as steps of a series, and texts."""
    root = tmp_path_factory.mktemp("served")
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "text",
        "number",
        *map(str, range(40)),
    ]
    for name in ("tiny", "step-1", "step-2"):
        torch.manual_seed(len(name) + int(name[-1] == "2"))
        BertModel(BertConfig(vocab_size=len(words), **SIZES)).save_pretrained(
            root / name
        )
        BertTokenizerFast(
            vocab={word: k for k, word in enumerate(words)}
        ).save_pretrained(root / name)
    texts = datasets.Dataset.from_dict(
        {"text": [f"text number {k} " * 9 for k in range(40)]}
    )
    texts.to_parquet(str(root / "texts" / "validation.parquet"))
    return root


@pytest.fixture(scope="module")
def hub(folders):
    with Hub() as hub:
        for name in ("tiny", "step-1", "step-2"):
            hub.add(f"someone/{name}", {MODELS: folders / name})
        yield hub


@pytest.fixture(scope="module")
def program(hub, tmp_path_factory):
    with Program(hub.environment(tmp_path_factory.mktemp("home"))) as program:
        yield partial(program, setup=NO_PAGE)


def asked(hub):
    """What the hub was asked since the last time, but for bodies."""
    requests = [
        line for line in hub.requests if "agent-harnesses" not in line
    ]  # the library's own question
    hub.requests.clear()
    fetched, hub.fetched[:] = list(hub.fetched), []
    return requests, fetched


@pytest.mark.parametrize(
    "model",
    [
        "someone/tiny",
        # `test_hub.py` starts a series twice
        pytest.param("someone/step-{1,2}", marks=pytest.mark.nightly),
    ],
)
def test_a_second_start_asks_for_commits_only(model, hub, program, folders, tmp_path):
    texts = f"someone/texts-{len(model)}"
    hub.add(
        f"datasets/{texts}",
        {TEXTS: folders / "texts", NEWER: folders / "texts"},
        refs={"main": TEXTS},
    )
    command = [
        "measure",
        model,
        "--corpus",
        texts,
        *PANEL,
        "--output",
        tmp_path / "run",
    ]
    first = program(command)
    assert first.code == 0 and asked(hub)[1], first.shown
    again = program(command)
    requests, fetched = asked(hub)
    assert again.code == 0 and again.shown == first.shown
    assert not fetched and all(line.startswith("GET /api/") for line in requests), (
        requests
    )
    assert len(requests) == len(set(requests)) == 2 + ("{" in model), (
        requests
    )  # one for each model and data set
    hub.fault = 503
    assert program(command).shown == first.shown
    alone = program(command, HF_HUB_OFFLINE="1")
    assert alone.code == 0 and not asked(hub)[1]
    hub.fault = None
    hub.repositories[f"datasets/{texts}"].refs["main"] = NEWER
    assert (
        program(command).code == 0 and asked(hub)[1]
    )  # another commit; of the same texts, as it comes out
    assert program(command).code == 0 and not asked(hub)[1]


def test_checkpoints_that_are_not_there_are_told_in_one_line(
    program, folders, tmp_path
):
    """Of a series of 145 with 125 missing every one had its own."""
    texts = folders / "texts" / "validation.parquet"
    command = [
        "measure",
        "someone/step-{1,2,7,8,9,10,11}",
        "--corpus",
        texts,
        *PANEL,
        "--skip-bad",
    ]
    ended = program([*command, "--output", tmp_path / "run"])
    (told,) = [line for line in ended.told.splitlines() if "skipped" in line]
    assert (
        ended.code == 0
        and "someone/step-7, someone/step-8, someone/step-9, and 2 more: expected"
        in told
    ), ended.told


def test_sentence_transformers_whose_configuration_is_of_the_first_module(
    hub, program, folders, tmp_path
):
    """They were refused: measure the folder of its first module, which a hub id cannot name."""
    pytest.importorskip("sentence_transformers")
    root = tmp_path / "sentences"
    shutil.copytree(folders / "tiny", root / "0_Transformer")
    (root / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    (root / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    kinds = {"0_Transformer": "Transformer", "1_Pooling": "Pooling"}
    rows = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in kinds.items()
    ]
    (root / "modules.json").write_text(json.dumps(rows))
    hub.add("someone/sentences", {MODELS: root})
    words = ["--corpus", folders / "texts" / "validation.parquet", *PANEL, "--output"]
    tables = []
    for name, variables in (
        (root, {}),
        ("someone/sentences", {}),
        ("someone/sentences", {"HF_HUB_OFFLINE": "1"}),
    ):
        ended = program(
            ["measure", name, *words, tmp_path / str(len(tables))], **variables
        )
        assert ended.code == 0, ended.shown
        tables.append(
            pd.read_parquet(tmp_path / str(len(tables)) / "records.parquet").drop(
                columns=["run", "model", "revision"]
            )
        )
    assert (
        "sentence" in set(tables[0]["stack"])
        and tables[0].equals(tables[1])
        and tables[0].equals(tables[2])
    )
    assert (
        sum(line.endswith("0_Transformer/model.safetensors") for line in hub.fetched)
        == 1
    )
    listed = program(["measure", "someone/sentences", "--dry-run"])
    assert listed.code == 0 and "memory" in listed.shown, listed.shown


def test_local_files_that_change_are_read_again(program, folders, tmp_path):
    text, command = (
        tmp_path / "text.jsonl",
        ["measure", folders / "tiny", *PANEL, "--corpus", tmp_path / "text.jsonl"],
    )
    rows = [f'{{"text": "text number {k}"}}' for k in range(30)]
    text.write_text("\n".join(rows))
    command += ["--output", tmp_path / "run"]
    first = program(command)
    assert first.code == 0 and program(command).shown == first.shown
    text.write_text("\n".join(rows[::-1]))
    changed = program(command)
    assert changed.code == 6 and "another run" in changed.shown, changed.shown


def test_a_run_that_was_written_over_is_not_taken_for_the_former(
    program, folders, tmp_path
):
    text = tmp_path / "text.jsonl"
    text.write_text("\n".join(f'{{"text": "text number {k}"}}' for k in range(30)))
    command = [
        "measure",
        folders / "tiny",
        "--corpus",
        text,
        *PANEL,
        "--output",
        tmp_path / "run",
        "--limit",
    ]
    assert program([*command, "20"]).code == 0
    assert (
        program(
            [*[word for word in command if word != "--resume"], "25", "--overwrite"]
        ).code
        == 0
    )
    assert program([*command, "20"]).code == 6


@pytest.mark.parametrize(
    ("files", "weights", "sound"),
    [
        (("config.json",), False, True),
        (("config.json",), True, False),
        (("config.json", "model.safetensors"), True, True),
        (("config.json", "pytorch_model.bin"), True, True),
    ],
)
def test_a_copy_without_weights_does_where_none_are_wanted(
    files, weights, sound, tmp_path
):
    for name in files:
        (tmp_path / name).write_bytes(b"{}")
    place = ModelPlace(
        str(tmp_path), None, NEWER, notice="the hub was not reached: its cache"
    )
    if sound:
        assert _verify_copy(place, "a/b", weights=weights) is place
    else:
        with pytest.raises(
            ModelError,
            match=r"the weights of a/b.*only a part of them in the cache, and the hub was not",
        ):
            _verify_copy(place, "a/b", weights=weights)


@pytest.mark.parametrize(
    ("name", "size", "read"),
    [
        ("config.json", 1 << 26, True),
        ("config.json", (1 << 26) + 1, False),
        ("config.json", None, True),
        (".gitattributes", 10, False),
        ("vocab.txt", 10, True),
        ("model.safetensors", 10, False),
        ("model.safetensors.index.json", 10, False),
        ("README.md", 10, False),
        ("code/own.py", 10, True),
        ("code/vocab.txt", 10, False),
        ("0_Transformer/vocab.txt", 10, True),
        ("0_Transformer/model.safetensors", 10, False),
        ("1_Pooling/config.json", 10, True),
        ("1_Pooling/vocab.txt", 10, False),
        ("1_Dense/model.safetensors", 10, True),
        ("1_Dense/pytorch_model.bin", 10, True),
        ("1_Dense/own.py", 10, False),
        ("a/1_Dense/config.json", 10, False),
    ],
)
def test_what_is_read_beside_the_weights(name, size, read):
    assert _is_small(name, size) is read


# ---- what is loaded, call by call ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights", [["a.safetensors"], {"no": "map"}, {"weight_map": ["a.safetensors"]}]
)
def test_a_damaged_index_of_weights_is_told(tmp_path, monkeypatch, weights):
    name = "model.safetensors.index.json"
    (tmp_path / name).write_text(json.dumps(weights))
    monkeypatch.setattr(of_hub, "_download", lambda *_: tmp_path)
    with pytest.raises(
        ModelError, match=r"an index of the weights in .*index\.json of one/two; got"
    ):
        of_hub._list_weight_files(
            ModelPlace("one/two", None, "c", files={name: "", "a.safetensors": ""}),
            tmp_path,
            "one/two",
        )


def test_a_full_disk_is_no_fault_of_the_hub(monkeypatch):
    """A copy in the cache would be taken in place of a file that could not be written."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(of_hub, "_download", full)
    monkeypatch.setattr(
        of_hub, "_find_in_cache", lambda *_: pytest.fail("the cache was asked")
    )
    with pytest.raises(OSError, match="No space left"):
        of_hub.download(
            ModelPlace("one/two", None, "c", files={"config.json": ""}), "one/two"
        )


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (
            Fault("a gated repository", "log in", denied=True),
            "access to one/two; got a gated repository",
        ),
        (
            Fault("no answer", "try again"),
            "got 'one/two': no answer and not in the cache",
        ),
    ],
)
def test_what_is_denied_is_told_apart_from_what_does_not_answer(
    monkeypatch, fault, expected
):
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: None)
    with pytest.raises(ModelError) as told:
        of_hub._find_in_cache("one/two", None, "one/two", "", fault)
    assert expected in str(told.value)


def test_a_hub_that_does_not_answer_is_not_asked_once_a_name(monkeypatch):
    """A pattern of 441 names on a slow network: each was waited for, eight at a time."""
    asked = []

    def fail(_self, name, **_):
        asked.append(name)
        raise TimeoutError("no answer in time")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", fail)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: None)
    found = expand("one/seed-{0,1,…,20}-step-{0,20,…,400}")
    assert [checkpoint.subject for checkpoint in found][:2] == [
        "one/seed-0-step-0",
        "one/seed-0-step-20",
    ]
    assert 1 <= len(asked) <= 8
    asked.clear()
    expand("one/seed-{0,1,…,20}-step-{0,20,…,400}")
    assert asked, "a later series asks again"


def test_beside_a_folder_of_that_name_the_folder_is_named(monkeypatch, tmp_path):
    """A known name is the hub's, and nothing said how to get at the folder."""
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    for there, said in (
        (False, "got 'gpt2': no answer and not in the cache. Cure: near try"),
        (True, "write ./gpt2;"),
    ):
        if there:
            (tmp_path / "gpt2").mkdir()
        with pytest.raises(ModelError) as told:
            of_hub._find_in_cache(
                "openai-community/gpt2",
                None,
                "gpt2",
                "near",
                Fault("no answer", "try again"),
            )
        assert said in str(told.value) and ("./gpt2" in str(told.value)) == there


def test_a_name_that_may_be_a_path_is_told_what_lies_in_its_folder(
    monkeypatch, tmp_path
):
    """Another number is no slip of the finger, but the folder is there: it spoke of the network alone."""
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "gpt2").mkdir(parents=True)
    with pytest.raises(
        ModelError,
        match=r"'models/gpt3', which is not there.*the folder models has gpt2; for a model",
    ):
        of_hub._find_in_cache(
            "models/gpt3",
            None,
            "models/gpt3",
            "",
            Fault("no network", "connect to the network"),
        )


@pytest.mark.parametrize("inside", ["", "0_Transformer/"])
def test_shards_lie_where_their_index_does(tmp_path, monkeypatch, inside):
    """An index names them as seen from its own folder: that of the first module of sentence-transformers."""
    names = [f"{inside}config.json", f"{inside}model.safetensors.index.json"]
    names += [f"{inside}model-0000{k}-of-00002.safetensors" for k in (1, 2)]
    place = ModelPlace(
        "some/model",
        None,
        MODELS,
        dict.fromkeys([*names, *["modules.json"] * bool(inside)], ""),
    )
    index = tmp_path / names[1]
    index.parent.mkdir(exist_ok=True)
    shards = {
        "a.weight": "model-00002-of-00002.safetensors",
        "b.weight": "model-00001-of-00002.safetensors",
    }
    index.write_text(json.dumps({"weight_map": shards}))
    monkeypatch.setattr(of_hub, "_download", lambda *_: tmp_path)
    assert of_hub._list_weight_files(place, tmp_path, "some/model") == names[2:]


def test_a_fault_is_found_behind_the_errors_that_it_led_to():
    """What a library raises while it handles an error has that error for its context, and no cause."""
    from huggingface_hub import errors

    def name_the_cause():
        try:
            raise errors.OfflineModeIsEnabled("offline")
        except errors.OfflineModeIsEnabled as error:
            raise OSError("no file") from error

    def handle():
        try:
            raise errors.OfflineModeIsEnabled("offline")
        except errors.OfflineModeIsEnabled:
            raise LookupError("nothing in the cache")  # as libraries do  # noqa: B904

    for raising in (name_the_cause, handle):
        with pytest.raises((OSError, LookupError)) as told:
            raising()
        assert "HF_HUB_OFFLINE" in classify_fault(told.value).got
