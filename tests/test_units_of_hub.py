"""What is asked of the hub, kept in its cache and read from a folder: each decision on a few names and answers."""

import gzip
import hashlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from torch import nn

from anisoscope.errors import ModelError
from anisoscope.models import (
    download as downloads,
    formats,
    hashes,
    hub,
    hub_faults,
    hub_memory,
    identity,
    vectors,
)
from anisoscope.models.hub import ModelPlace
from anisoscope.models.hub_faults import Fault


def reply(status, kind=errors.HfHubHTTPError, **headers):
    """An error of the hub's library with this status."""
    error = kind.__new__(kind)
    Exception.__init__(error, "a reply")
    error.response = SimpleNamespace(status_code=status, headers=headers)
    return error


def sentence(call, *given, **how):
    """The whole message of the ModelError that a call raises."""
    with pytest.raises(ModelError) as raised:
        call(*given, **how)
    return str(raised.value)


# ---- formats of folders


@pytest.mark.parametrize(
    ("names", "folder"),
    [
        (["modules.json", "0_Transformer/config.json"], "0_Transformer/"),
        (["modules.json", "1_Pooling/config.json"], ""),
        (["modules.json", "0_T/vocab.txt"], ""),
        (["modules.json", "x/0_T/config.json"], ""),
        (["0_T/config.json"], ""),
        (["modules.json", "config.json", "0_T/config.json"], ""),
        (["modules.json", "0_B/config.json", "0_A/config.json"], "0_A/"),
    ],
)
def test_the_folder_of_the_first_module(names, folder):
    assert formats.find_first_module(names) == folder
    assert formats.find_first_module(iter(names)) == folder
    found = formats.choose_weight_file([*names, f"{folder}pytorch_model.bin"])
    assert found == f"{folder}pytorch_model.bin"


def test_which_file_holds_the_weights():
    for names, chosen in (
        (["pytorch_model.bin.index.json", "model.safetensors.index.json"], 1),
        (["pytorch_model.bin.index.json", "pytorch_model.bin"], 1),
        (["adapter_model.bin", "adapter_model.safetensors"], 1),
        (["adapter_model.bin", "pytorch_model.bin.index.json"], 1),
        (["x.safetensors", "adapter_model.bin"], 1),
    ):
        assert formats.choose_weight_file(names) == names[chosen]
    older = ["modules.json", "0_T/config.json", "model.safetensors"]
    assert formats.choose_weight_file(older) is None, "of the main folder"


def test_a_first_module_that_is_no_transformer(tmp_path):
    def foreign(*rows):
        (tmp_path / "modules.json").write_text(json.dumps(rows))
        return formats.find_foreign_first_module(tmp_path)

    def of(name):
        return {"type": name}

    assert (
        foreign(of("sentence_transformers.models.WordEmbeddings")) == "WordEmbeddings"
    )
    assert foreign(of("sentence_transformers.models.CLIPModel")) == ""
    assert foreign(of("custom.code.WordEmbeddings")) == "", "code of its own"
    plain = of("sentence_transformers.models.Transformer")
    assert foreign(plain, of("sentence_transformers.models.Pooling")) == ""
    assert foreign({}) == foreign() == foreign("text") == ""
    (tmp_path / "modules.json").write_text('{"type": "sentence_transformers.x.BoW"}')
    assert formats.find_foreign_first_module(tmp_path) == ""
    (tmp_path / "rows.json").write_text('[{"a": 1}, 3, "x", {}]')
    assert formats.read_list(tmp_path / "rows.json") == [{"a": 1}, {}]
    assert formats.read_config(tmp_path / "rows.json") == {}


def test_files_of_a_folder_and_of_its_first_module(tmp_path):
    for name in ("b.txt", "a.txt", "0_T/z.json", "1_P/x.json", "0_T/deep/y.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert formats.list_checkpoint_files(tmp_path) == [
        "0_T",
        "0_T/deep",
        "0_T/z.json",
        "1_P",
        "a.txt",
        "b.txt",
    ]


def test_what_files_and_configurations_are_said_to_be(monkeypatch, tmp_path):
    there = {"timm": None}
    monkeypatch.setattr(formats, "find_spec", lambda name: there[name])
    explain = formats.explain_config
    assert explain({}) == explain({"quantization_config": 3}) == ""
    timm = {"architecture": "resnet18"}
    assert explain(timm) == "it is a model of timm: pip install timm"
    there["timm"] = "here"
    assert explain(timm) == f"it is a model of timm: {formats.OWN}"
    assert explain({"pretrained_cfg": {}, "model_type": "x"}).startswith(
        "it is a model"
    )
    assert explain(timm | {"model_type": "x"}) == ""
    assert explain({"quantization_config": {}}) == (
        "its weights are quantised (an unknown method): "
        "measure the checkpoint that they were made from"
    )
    assert explain({"_diffusers_version": 1}) == (
        f"it is a part of a diffusers pipeline (unknown): {formats.OWN}"
    )
    # Whatever comes first in the table, also of an iterator that can be read once.
    names = ["x.pt", "y.onnx"]
    assert formats.explain_format(iter(names)) == formats.FORMATS["*.onnx"]
    assert formats.explain_format(iter(names[:1])) == formats.FORMATS["*.pt"]
    for names, says in (
        ("adapter_config.json adapter.gguf", "it is an adapter (LoRA, PEFT)"),
        ("model.gguf", "it is GGUF"),
        ("model_index.json open_clip_config.json", "it is a pipeline of diffusers"),
        ("open_clip_model.safetensors tf_model.h5", "it is a checkpoint of open_clip"),
        ("tf_model.h5 flax_model.msgpack", "its weights are TensorFlow's"),
        ("flax_model.msgpack model.onnx", "its weights are Flax's"),
        ("model.onnx consolidated.00.pth", "it is ONNX"),
        ("consolidated.00.pth", "it is a checkpoint in its authors' own format"),
        ("model.fp16.safetensors modules.json", "its weights have a name of a variant"),
        ("modules.json last.ckpt", "it is a folder of sentence-transformers"),
        ("last.ckpt x.pt", "it is the state of a training"),
        ("x.pt", "it is a file of torch without"),
        ("x.th", "it is a file of torch without"),
        ("x.pth", "it is a file of torch without"),
    ):
        assert formats.explain_format(reversed(names.split())).startswith(says), names
    names = ["x.pt", "y.onnx"]
    (tmp_path / "config.json").write_text(json.dumps(timm))
    assert formats.explain_format(["x"], tmp_path / "config.json") == explain(timm)
    assert formats.explain_format(names, tmp_path / "config.json") != explain(timm)


# ---- hashes that are kept


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A cache of hashes, in which every file counts as large. Returns (folder of files, folder of hashes)."""
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "LARGE", 1)
    (tmp_path / "files").mkdir()
    return tmp_path / "files", hashes.find_cache_folder() / "hashes"


def recalled(*files, key="k", value="a"):
    """Whether the hash was computed, and what came."""
    made = []

    def compute():
        made.append(1)
        return value * 64

    found = hashes.recall_hash(list(files), lambda: [key], compute)
    return len(made), found[0]


def test_a_hash_is_kept_as_long_as_its_file_is_the_same(kept):
    files, _ = kept
    one, two = files / "x", files / "sub" / "x"
    two.parent.mkdir()
    for path in (one, two):
        path.write_text("text")
        os.utime(path, (100, 100))
    assert recalled(one) == (1, "a")
    assert recalled(one, value="b") == (0, "a")
    assert recalled(two, value="b") == (1, "b"), "of the same name, in another folder"
    assert recalled(one, key="other", value="c") == (1, "c")
    assert recalled(one, two, value="d") == (1, "d")
    os.utime(one, (100, 200))
    assert recalled(one, value="e") == (1, "e"), "changed later"
    one.write_text("texts")
    os.utime(one, (100, 200))
    assert recalled(one, value="f") == (1, "f"), "of another size"
    (files / "link").symlink_to(one)
    assert recalled(files / "link", value="1") == (0, "f"), "the file that it leads to"


def test_a_hash_that_cannot_be_read_or_written_is_computed_once(kept, monkeypatch):
    files, cache = kept
    path = files / "x"
    path.write_text("text")
    recalled(path)
    (note,) = (p for p in cache.iterdir() if not p.name.startswith("."))
    assert note.read_text() == "a" * 64 and len(note.name) == 32
    for damaged in ("a" * 63, "", "z" * 64, "a" * 65):
        note.write_text(damaged)
        assert recalled(path, value="b") == (1, "b")
    note.unlink()

    def refuse(*_):
        raise OSError("read-only")

    monkeypatch.setattr("anisoscope.store.write_atomic", refuse)
    assert recalled(path, value="c") == (1, "c")
    assert hashes.hash_large_file(path) == hashlib.sha256(b"text").hexdigest()


def test_only_files_that_are_large_together_are_asked_about(monkeypatch, tmp_path):
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "LARGE", 6)
    for name, size in (("a", 3), ("b", 3), ("c", 2)):
        (tmp_path / name).write_text("x" * size)
    assert recalled(tmp_path / "a", tmp_path / "b")[0] == 1
    assert recalled(tmp_path / "a", tmp_path / "b")[0] == 0
    for _ in range(2):
        assert recalled(tmp_path / "a", tmp_path / "c")[0] == 1
        assert recalled()[0] == 1


# ---- faults of the hub


def test_each_status_of_the_hub_is_told_with_its_cure(monkeypatch):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "secret")
    login = "`hf auth login` with a valid token, or without one: `hf auth logout` and unset HF_TOKEN"
    terms = "accept its terms on its page of the hub, then `hf auth login`"
    own = "a private repository needs `hf auth login`"
    rights = "give the token the right to read it, or accept the repository's terms on its page"
    later = "try again later; status.huggingface.co says more"
    limit = "wait some minutes, or `hf auth login` for a higher limit"
    other = "try again, or check HF_ENDPOINT and the proxy"
    missing = errors.RepositoryNotFoundError
    for error, fault in (
        (reply(401, errors.GatedRepoError), Fault("a gated repository (401)", terms, denied=True)),
        (
            reply(403, errors.DisabledRepoError),
            Fault("a repository that the hub has disabled (403)", "name another one", denied=True),
        ),
        (reply(401, missing), Fault("no such repository (401)", own, absent=True)),
        (reply(401), Fault("a token that the hub refuses (401)", login, denied=True)),
        (
            reply(403),
            Fault("a token without the right to read it (403)", rights, denied=True),
        ),
        (reply(404), Fault("no such page (404)", "check the spelling", absent=True)),
        (reply(429), Fault("too many requests for the hub (429)", limit)),
        (reply(500), Fault("a failure of the hub itself (500)", later)),
        (reply(418), Fault("an answer with status 418", other)),
    ):  # fmt: skip
        assert hub_faults.classify_fault(error) == fault


def test_a_fault_is_looked_for_in_all_that_led_to_it(monkeypatch):
    """A status first, wherever it is; an error of the network by its own name, not by that of what followed."""
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    timeout = type("ReadTimeout", (errors.HTTPError,), {})("slow")
    last = ValueError("last")
    last.__context__ = timeout
    slow = Fault(
        "no network, or one too slow (no answer in time)", "connect to the network"
    )
    assert hub_faults.classify_fault(last) == slow
    timeout.__cause__ = reply(503)
    assert hub_faults.classify_fault(last).got == "a failure of the hub itself (503)"
    timeout.__cause__, timeout.__context__ = None, last
    assert hub_faults.classify_fault(last) == slow, "a circle has an end"
    offline = errors.OfflineModeIsEnabled("x")
    assert hub_faults.classify_fault(offline) == Fault(
        "no network wanted: HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"
    )
    login = "a network that asks for a login answers so: log in to it with a browser"
    foreign = Fault("a page that is not the hub's", login)
    for error in (
        errors.FileMetadataError("x"),
        json.JSONDecodeError("x", "y", 0),
        KeyError("x"),
        TypeError("x"),
        AttributeError("x"),
    ):
        assert hub_faults.classify_fault(error) == foreign
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror")
    cure = f"{login}; or HF_ENDPOINT (http://mirror) is no hub"
    assert hub_faults.classify_fault(KeyError("x")).cure == cure
    long = hub_faults.classify_fault(RuntimeError("a\n  b " + "x" * 300))
    assert long == Fault("RuntimeError: a b " + "x" * 156, "try again")


def test_requests_without_a_reply_are_told_apart():
    certificate = "log in to the network with a browser, or set SSL_CERT_FILE to the proxy's certificate"
    network = "connect to the network"
    for kind, text, got, cure in (
        ("ConnectError", "certificate verify", "a certificate that is not the hub's", certificate),
        ("ProxyError", "p" * 90, f"a proxy that fails ({'p' * 80})", "check HTTPS_PROXY and HTTP_PROXY"),
        ("ConnectTimeout", "", "no network, or one too slow (no answer in time)", network),
        ("ReadError", "", "a connection that broke off (ReadError)", "try again"),
        ("LocalProtocolError", "", "a connection that broke off (LocalProtocolError)", "try again"),
        ("ConnectError", "", "no network", network),
    ):  # fmt: skip
        assert hub_faults._explain_no_reply(kind, text) == Fault(got, cure)


# ---- names and places


def test_names_are_split_at_their_first_sign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    assert hub.split_name("o/m@a@b") == ("o/m", "a@b")
    assert sentence(hub.split_name, "@main") == (
        "expected a model's name before @; got @main. Cure: write ID@main"
    )
    assert sentence(hub.split_name, "own@main") == (
        "expected a folder without a revision; got own@main. Cure: name own, or a hub id with @main"
    )
    assert sentence(hub.split_name, "x" * 5000) == (
        f"expected a model's name; got {'x' * 40} … of 5000 letters. "
        "Cure: shorten it: no part may exceed 255, nor all of it 4095"
    )


def test_a_model_is_located_on_the_hub_or_the_fault_is_told(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    answers, notes, looked = [], [], []

    def ask(path, revision):
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer._replace(path=path, revision=revision)

    monkeypatch.setattr(hub, "_ask_hub", ask)
    monkeypatch.setattr(hub, "remember", lambda *given: notes.append(given))
    monkeypatch.setattr(hub, "_find_in_cache", lambda *given: looked.append(given))
    answers.append(ModelPlace("", None, "c0ffee"))
    place = hub.locate("o/m", "v1", "short@v1")
    assert (place.path, place.revision, place.commit) == ("o/m", "v1", "c0ffee")
    assert notes == [("model", "o/m", "v1", "c0ffee")]
    answers.append(reply(404, errors.RevisionNotFoundError))
    assert sentence(hub.locate, "o/m", "v2", "short@v2") == (
        "expected a revision of o/m; got v2. Cure: leave the revision out for the newest one"
    )
    answers.append(errors.HFValidationError("x"))
    assert sentence(hub.locate, "o/m", None, "o m", "did you mean x?") == (
        "expected a model; got 'o m', which is neither a folder here nor on the hub. Cure: did you mean x?; "
        "check the spelling, or use a folder or builtin:minilm"
    )
    answers.append(reply(503))
    hub.locate("o/m", "v3", "short", "did you mean x?")
    ((path, revision, name, suggestion, fault),) = looked
    assert (path, revision, name, suggestion) == (
        "o/m",
        "v3",
        "short",
        "did you mean x?",
    )
    assert fault.got == "a failure of the hub itself (503)" and len(notes) == 1
    assert hub.locate(str(tmp_path), None, "x") == ModelPlace(str(tmp_path), None)


def test_what_the_hub_says_of_a_model(monkeypatch):
    """Of a large file the hash of its content, not that of the pointer to it; the answer is kept by revision."""
    asked = []

    def file(name, size=None, lfs=None, blob=None):
        return SimpleNamespace(rfilename=name, size=size, lfs=lfs, blob_id=blob)

    info = SimpleNamespace(
        sha="c0ffee",
        siblings=[
            file("a", 5, {"sha256": "of content"}, "of pointer"),
            file("b", None, None, "of blob"),
            file("c"),
        ],
    )

    def model_info(path, **how):
        asked.append((path, how))
        return info

    api = SimpleNamespace(model_info=model_info)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    monkeypatch.setattr(hub, "get_timeout", lambda: 7.5)
    with hub_memory.ask_once():
        for revision in ("v1", None, "v1"):
            place = hub._ask_hub("o/m", revision)
            assert place.revision == revision
    how = {"token": None, "timeout": 7.5, "files_metadata": True}
    assert asked == [("o/m", how | {"revision": r}) for r in ("v1", None)]
    assert place == ModelPlace(
        "o/m",
        "v1",
        "c0ffee",
        {"a": "of content", "b": "of blob", "c": ""},
        {"a": 5, "b": None, "c": None},
    )
    monkeypatch.setattr(hub, "with_token_fallback", lambda ask: (ask(False), False))
    open_to_all = hub._ask_hub("o/m", None)
    assert open_to_all.token is False and asked[-1][1]["token"] is False
    assert open_to_all.notice == (
        "the hub refuses the token; o/m is public and was loaded without it"
    )
    info.siblings, info.sha = None, 3
    with pytest.raises(LookupError, match="no commit in the answer"):
        hub._ask_hub("o/m", None)


def test_what_exists_and_which_revisions_there_are(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    located = []

    def locate(base, revision, name):
        located.append((base, revision, name))
        if revision == "none":
            raise ModelError("a", "b", "c")
        return ModelPlace(base, revision)

    monkeypatch.setattr(hub, "locate", locate)
    assert hub.does_exist("o/m@v1") and not hub.does_exist("o/m@none")
    assert located == [("o/m", "v1", "o/m@v1"), ("o/m", "none", "o/m@none")]
    (tmp_path / "here").write_text("x")
    assert hub.does_exist("here") and len(located) == 2

    def named(*names):
        return [SimpleNamespace(name=name) for name in names]

    refs = SimpleNamespace(branches=named("main", "dev"), tags=named("v1"))
    tokens = []

    def list_refs(repository, token):
        tokens.append((repository, token))
        if repository == "o/silent":
            raise OSError
        return refs

    api = SimpleNamespace(list_repo_refs=list_refs)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert hub.list_revisions("o/m") == ["main", "dev", "v1"]
    assert hub.list_revisions("o/silent") == []
    for name in ("main", "feature/x"):
        path = tmp_path / "models--o--silent" / "refs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("c")
    assert sorted(hub.list_revisions("o/silent")) == ["feature/x", "main"]
    assert tokens[0] == ("o/m", None)


FAULT = Fault("no network", "connect to the network")


@pytest.mark.parametrize("file", ["config.json", "adapter_config.json", "modules.json"])
def test_a_copy_in_the_cache_serves_any_kind_of_checkpoint(monkeypatch, tmp_path, file):
    asked = []
    folder = tmp_path / "0123456789abcdef"

    def look(path, name, revision=None):
        asked.append((path, name, revision))
        return str(folder / name) if name == file else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", look)
    place = hub._find_in_cache("o/m", "v1", "name", "", FAULT)
    assert place == ModelPlace(
        str(folder),
        None,
        folder.name,
        notice="no network: the copy of o/m in the cache is used (commit 0123456789ab)",
    )
    assert asked[-1] == ("o/m", file, "v1")
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache", lambda *_, **_how: object()
    )
    assert "'name': no network and not in the cache" in sentence(
        hub._find_in_cache, "o/m", "v1", "name", "", FAULT
    )


def test_why_a_model_is_nowhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def explain(path="o/m", name="name", suggestion="did you mean x?", fault=FAULT):
        return str(hub._explain_absence(path, name, suggestion, fault))

    assert explain(fault=Fault("got", "the cure", absent=True)) == (
        "expected a model; got 'name', which is neither a folder here nor on the hub. Cure: did you mean x?; "
        "check the spelling, or use a folder or builtin:minilm; the cure"
    )
    assert explain(fault=Fault("got", "the cure", denied=True)) == (
        "expected access to name; got got. Cure: the cure"
    )
    kinds = "expected a hub id, a folder, builtin:minilm or module:factory; got"
    local = "else use builtin:minilm or a local folder (HF_HOME points to the cache)"
    assert explain() == (
        f"{kinds} 'name': no network and not in the cache. "
        f"Cure: did you mean x? connect to the network; {local}"
    )
    (tmp_path / "m").mkdir()
    assert explain(name="m", suggestion="") == (
        f"{kinds} 'm': no network and not in the cache. Cure: for the folder of this name "
        f"write ./m; for the hub's model: connect to the network; {local}"
    )
    (tmp_path / "o").mkdir()
    assert explain() == (
        "expected a model; got 'name', which is not there, and not in the cache of the hub. "
        "Cure: the folder o is empty; for a model of the hub: connect to the network"
    )


def test_of_a_folder_five_names_are_told_in_order(monkeypatch, tmp_path):
    """Whichever the file system gives first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    names = [Path(name) for name in "hgfedcba"]
    monkeypatch.setattr(Path, "iterdir", lambda _self: iter(names))
    assert hub.describe_folder_of("d/x") == "the folder d has a, b, c, d, e"
    assert hub.describe_folder_of("x") == "", "what lies in the current folder"


# ---- downloads


FILES = {"config.json": "h1", "model.safetensors": "h2", "a/code.py": "h3"}
PLACE = ModelPlace("o/m", "v1", "c0ffee", FILES, {}, None, "a notice")


@pytest.fixture
def downloading(monkeypatch, tmp_path):
    """Note what is downloaded, verified and remembered, in turn."""
    done = []

    def fetch(_place, names):
        done.append(sorted(names))
        return tmp_path

    monkeypatch.setattr(hub, "_download", fetch)
    monkeypatch.setattr(hub, "verify_hashes", lambda *given: done.append(given))
    monkeypatch.setattr(
        hub, "_remember", lambda place, folder, move: done.append((place, folder, move))
    )
    return done


def test_a_model_is_downloaded_verified_and_remembered(downloading, tmp_path):
    small, weights = ["a/code.py", "config.json"], ["model.safetensors"]
    for how, fetched, move in (
        ({}, [small, weights], True),
        ({"weights": False}, [small], True),
        ({"config_only": True}, [small], False),
    ):
        downloading.clear()
        found = hub.download(PLACE, "name", **how)
        assert found == ModelPlace(str(tmp_path), None, "c0ffee", notice="a notice")
        checked = [(tmp_path, FILES, "name"), (PLACE, tmp_path, move)]
        assert downloading == [*fetched, *checked]


def test_what_is_here_already_is_not_downloaded(downloading, tmp_path):
    """A folder of the user's is taken as it is; a copy in the cache is verified."""
    own = ModelPlace(str(tmp_path), None)
    assert hub.download(own, "name") is own and downloading == []
    notice = "no network: the copy is used"
    copy = ModelPlace(str(tmp_path), None, "c0ffee", notice=notice)
    assert sentence(hub.download, copy, "name") == (
        "expected the weights of name; got only a part of them in the cache, and no network. "
        "Cure: connect to the network"
    )
    for how in ({"weights": False}, {"config_only": True}):
        assert hub.download(copy, "name", **how) is copy
    (tmp_path / "model.safetensors").write_text("x")
    assert hub.download(copy, "name") is copy
    assert downloading == [(tmp_path, {}, "name")] * 3


@pytest.mark.usefixtures("downloading")
def test_downloads_that_fail(monkeypatch, tmp_path):
    """A full disk is raised as it is, what is denied or gone is an error, and else the copy of that revision serves."""
    looked = []
    copy = ModelPlace(str(tmp_path), None, "old", notice="no network: x")
    (tmp_path / "model.safetensors").write_text("x")
    monkeypatch.setattr(
        hub, "_find_in_cache", lambda *given: looked.append(given) or copy
    )

    def failing(error):
        def fail(*_):
            raise error

        monkeypatch.setattr(hub, "_download", fail)
        return hub.download(PLACE, "name")

    with pytest.raises(OSError, match="full"):
        failing(OSError(28, "full"))
    assert looked == []
    assert failing(OSError("without a number")) is copy
    ((path, revision, name, suggestion, fault),) = looked
    assert (path, revision, name, suggestion) == ("o/m", "v1", "name", "")
    assert fault.got == "OSError: without a number"
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert sentence(failing, reply(404)) == (
        "expected access to name; got no such page (404). Cure: check the spelling"
    )
    with pytest.raises(ModelError, match="expected access to name; got a gated"):
        failing(reply(403, errors.GatedRepoError))
    assert len(looked) == 1


def test_files_that_are_read_in_addition_to_the_weights():
    for name, size, small in (
        ("config.json", None, True),
        ("vocab.txt", 1 << 26, True),
        ("vocab.txt", (1 << 26) + 1, False),
        (".gitattributes", 1, False),
        ("sub/.x.py", 1, False),
        ("0_T/vocab.txt", 1, True),
        ("0_T/model.bin", 1, False),
        ("1_Dense/pytorch_model.bin", 1, True),
        ("1_Dense/model.safetensors", 1, True),
        ("1_Dense/config.json", 1, True),
        ("1_Dense/vocab.txt", 1, False),
        ("10_Dense/config.json", 1, False),
        ("sub/0_T/vocab.txt", 1, False),
        ("sub/code.py", 1, True),
        ("sub/config.json", 1, False),
        ("model.safetensors.index.json", 1, False),
        ("readme.md", 1, False),
        *(
            (f"x.{end}", 1, False)
            for end in ["npz", "pb", "zip", "tar", "gz", "pkl", "png", "jpg", "gif"]
        ),
        *(
            (f"x.{end}", 1, False)
            for end in ["mp4", "wav", "pdf", "gguf", "onnx", "tflite", "msgpack"]
        ),
    ):
        assert hub._is_small(name, size) is small, name


def test_repositories_that_are_no_checkpoint_are_told_what_they_are(tmp_path):
    def small(*files):
        place = ModelPlace("o/m", None, "c", dict.fromkeys(files, ""))
        return sentence(hub._list_small_files, place, "name", config_only=False)

    def weights(*files):
        place = ModelPlace("o/m", None, "c", dict.fromkeys(files, ""))
        return sentence(hub._list_weight_files, place, tmp_path, "name")

    assert small("x.onnx") == (
        "expected config.json in name; got a repository without one. "
        f"Cure: {formats.FORMATS['*.onnx']}"
    )
    assert small("x.txt").endswith("Cure: name another model")
    expected = (
        "expected weights of torch in name; got a repository without them. Cure: "
    )
    assert weights("config.json") == f"{expected}name another model"
    assert weights("config.json", "tf_model.h5") == (
        f"{expected}{formats.FORMATS['tf_model.h5']}"
    )
    (tmp_path / "config.json").write_text('{"quantization_config": {}}')
    assert weights("config.json").endswith("that they were made from")


def test_shards_are_those_of_the_index(monkeypatch, tmp_path):
    fetched = []

    def fetch(_place, names):
        fetched.append(names)
        return tmp_path

    monkeypatch.setattr(hub, "_download", fetch)
    index = "model.safetensors.index.json"
    mapped = {"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}  # fmt: skip
    for folder, more in (("", []), ("0_T/", ["modules.json", "0_T/config.json"])):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / index).write_text(json.dumps(mapped))
        place = ModelPlace("o/m", None, "c", dict.fromkeys([*more, folder + index], ""))
        found = hub._list_weight_files(place, tmp_path, "name")
        assert found == [f"{folder}1.safetensors", f"{folder}2.safetensors"]
        assert fetched.pop() == [folder + index]
    whole = ModelPlace("o/m", None, "c", {"pytorch_model.bin": "", "config.json": ""})
    assert hub._list_weight_files(whole, tmp_path, "name") == ["pytorch_model.bin"]
    (tmp_path / "0_T" / index).write_text("[]")
    message = sentence(hub._list_weight_files, place, tmp_path, "name")
    assert message.startswith(
        f"expected an index of the weights in 0_T/{index} of name; "
    )


def test_files_are_fetched_at_the_commit_and_with_the_token_that_worked(
    monkeypatch, tmp_path
):
    asked = []

    def fetch(path, name, **how):
        asked.append((path, name, how))
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    place = PLACE._replace(token=False)
    assert hub._download(place, ["a/b/c.py", "config.json"]) == tmp_path
    how = {"revision": "c0ffee", "token": False}
    assert sorted(asked, key=str) == [
        ("o/m", "a/b/c.py", how),
        ("o/m", "config.json", how),
    ]


def test_wrong_hashes_are_told_with_the_first_file(tmp_path):
    """Files of one name in two folders have each their own hash; what was wrong is removed."""

    def sha(text):
        return hashlib.sha256(text).hexdigest()

    for name in ("x", "sub/x", "sub/y"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    announced = {"x": sha(b"x"), "sub/x": sha(b"sub/x"), "sub/y": sha(b"sub/y")}
    hub.verify_hashes(tmp_path, announced, "name")
    announced["sub/y"] = "0" * 64
    cure = "load it again; if it comes again, something in between changes it: check HF_ENDPOINT and the proxy"
    message = sentence(hub.verify_hashes, tmp_path, announced, "name")
    assert message == (
        f"expected y of name with the hash that the hub announced, {'0' * 16}…; "
        f"got {sha(b'sub/y')[:16]}…; removed from the cache. Cure: {cure}"
    )
    assert not (tmp_path / "sub" / "y").exists() and (tmp_path / "x").exists()
    hub.verify_hashes(tmp_path, announced, "name")
    announced |= {"x": "1" * 64, "sub/x": "2" * 64}
    message = sentence(hub.verify_hashes, tmp_path, announced, "name")
    assert f"{sha(b'sub/x')[:16]}… (2 files in all); removed" in message
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / sha(b"other")).write_bytes(b"changed")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "z").symlink_to(Path("..") / "blobs" / sha(b"other"))
    assert "z of name" in sentence(hub.verify_hashes, snapshot, {}, "name")
    assert list(blobs.iterdir()) == list(snapshot.iterdir()) == []


# ---- checkpoints of a series on the disk


def test_the_stamp_of_a_checkpoint_is_its_commit_or_its_files(tmp_path):
    def stamp():
        return downloads.compute_stamp(str(tmp_path), ModelPlace(str(tmp_path), None))

    assert downloads.compute_stamp("o/m", ModelPlace("o/m", None, "c0ffee")) == "c0ffee"
    seen = {stamp()}
    names = ("a.safetensors", "b.bin", "c.json", "d.txt", "e.model", "f.py")
    for count, name in enumerate(names, 2):
        (tmp_path / name).write_text("one")
        os.utime(tmp_path / name, (100, 100))
        seen.add(stamp())
        assert len(seen) == count, name
    same = stamp()
    (tmp_path / "notes.md").write_text("x")
    assert stamp() == same
    os.utime(tmp_path / "f.py", (100, 101))
    later = stamp()
    (tmp_path / "f.py").write_text("four")
    os.utime(tmp_path / "f.py", (100, 101))
    assert len({same, later, stamp()}) == 3
    assert json.loads(same)[0] == ["a.safetensors", 3, 100 * 10**9]


def test_what_checkpoints_of_a_series_have_in_common(monkeypatch, tmp_path):
    from transformers import AutoConfig

    fetched, read = [], []

    def fetch(place, subject, **how):
        fetched.append((place, subject, how))
        return ModelPlace(str(tmp_path), None)

    shape = {
        "model_type": "m",
        "vocab_size": 5,
        "hidden_size": 4,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
    }

    def read_config(path, **how):
        read.append((path, how))
        return SimpleNamespace(**shape, other=1)

    monkeypatch.setattr(downloads, "download", fetch)
    monkeypatch.setattr(AutoConfig, "from_pretrained", read_config)
    assert downloads.read_shape("o/m", PLACE, trust_remote_code=True) == shape
    assert fetched == [(PLACE, "o/m", {"config_only": True})]
    assert read == [(str(tmp_path), {"trust_remote_code": True})]
    del shape["num_attention_heads"]
    # The first of the files of words that is there counts.
    for name in (
        *("sentencepiece.bpe.model", "tokenizer.model", "spiece.model"),
        *("vocab.json", "vocab.txt", "tokenizer.json"),
    ):
        (tmp_path / name).write_text(name)
        words = hashlib.sha256(name.encode()).hexdigest()[:16]
        assert downloads.read_shape("o/m", PLACE) == shape | {"vocabulary": words}
    assert read[-1][1] == {"trust_remote_code": False}

    def fail(*_, **_how):
        raise ValueError("no\n config")

    monkeypatch.setattr(AutoConfig, "from_pretrained", fail)
    assert sentence(downloads.read_shape, "o/m", PLACE) == (
        "expected a configuration of o/m; got no config. Cure: download or save it again"
    )


def test_checkpoints_are_fetched_for_a_series_only(monkeypatch):
    done = []
    monkeypatch.setattr(downloads, "remember", lambda *g: done.append(("note", *g)))
    monkeypatch.setattr(downloads, "locate", lambda *g: done.append(("find", *g)))
    monkeypatch.setattr(downloads, "download", lambda *g: done.append(("load", *g)))
    cure = "Check the names that the pattern matches."
    steps = [("find", "o/m", "v1", "o/m@v1", cure), ("load", None, "o/m@v1")]
    downloads.fetch("o/m@v1")
    assert done == [("note", "fetched", "o/m", "v1", "o/m@v1"), *steps]
    done.clear()
    downloads.fetch("o/m@v1", lent=False)
    assert done == steps

    for error in (ModelError("a", "b", "c"), OSError("full")):

        def fail(*_, error=error):
            raise error

        monkeypatch.setattr(downloads, "download", fail)
        downloads.fetch("o/m@v1")


def test_what_a_series_left_is_known_until_it_is_let_go_of(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    asked = []

    def look(base, name, revision=None):
        asked.append((base, name, revision))
        here = (base, name, revision) == ("o/m", "pytorch_model.bin", "v1")
        return "path" if here else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", look)
    assert downloads.is_on_disk("o/m@v1") and not downloads.is_on_disk("o/m")
    (tmp_path / "own").mkdir()
    assert downloads.is_on_disk("own")
    assert not downloads.is_left_over("o/m@v1")
    hub_memory.remember("fetched", "o/m", "v1", "o/m@v1")
    hub_memory.remember("fetched", "o/m", None, "o/m")
    assert downloads.is_left_over("o/m@v1")
    assert not downloads.is_left_over("o/m"), "it is noted, but not there"
    deleted = []

    class Cache:
        def __init__(self, repos):
            self.repos = repos

        def delete_revisions(self, *commits):
            names = sorted(repo.kind for repo in self.repos)
            return SimpleNamespace(execute=lambda: deleted.append((names, commits)))

    def revision(commit, *refs):
        return SimpleNamespace(commit_hash=commit, refs=frozenset(refs))

    class Repository:
        def __init__(self, repo_id, repo_type, kind, *revisions):
            self.repo_id, self.repo_type = repo_id, repo_type
            self.kind, self.revisions = kind, revisions

    both = revision("c1", "v1"), revision("c2", "main")
    cache = Cache(
        [
            Repository("o/m", "dataset", "data", *both),
            Repository("o/m", "model", "this", *both, revision("c3")),
            Repository("o/n", "model", "other", *both),
        ]
    )
    monkeypatch.setattr("huggingface_hub.scan_cache_dir", lambda: cache)
    monkeypatch.setattr(downloads, "replace", lambda _cache, repos: Cache(repos))
    for subject, commit in (("o/m@v1", "c1"), ("o/m", "c2"), ("o/m@c3", "c3")):
        downloads.delete_checkpoint(subject)
        assert deleted.pop() == (["this"], (commit,)) and deleted == []
        assert not downloads.is_left_over(subject)
    assert hub_memory.recall_commit("fetched", "o/m", "v1") == ""


# ---- what identifies a model


def test_sources_of_a_model_are_those_of_its_classes_and_their_bases(
    monkeypatch, tmp_path
):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "q5_base.py").write_text(
        "from torch import nn\nclass B(nn.Module): pass"
    )
    (tmp_path / "q5_own.py").write_text("import q5_base\nclass O(q5_base.B): pass")
    import q5_own

    model = nn.Sequential(nn.Linear(1, 1), q5_own.O())
    found = identity.hash_own_sources(model)
    assert len(found) == 2 and len(set(found)) == 2
    inner = identity.hash_own_sources(sys.modules["q5_base"].B())
    assert set(inner) < set(found)
    assert identity.hash_own_sources(nn.Linear(1, 1)) == []
    for name in ("q5_own", "q5_base"):
        del sys.modules[name]
    for folder in ("site-packages", "dist-packages"):
        place = tmp_path / folder / "x.py"
        place.parent.mkdir()
        place.write_text("x")
        assert not identity._is_own_source(place)
    assert identity._is_own_source(tmp_path / "q5_own.py")
    assert not identity._is_own_source(tmp_path / "none.py")
    assert not identity._is_own_source(Path(os.__file__))
    assert not identity._is_own_source(Path(identity.__file__))


def test_the_hash_of_loaded_weights_is_kept_by_their_files_names_and_numbers(
    monkeypatch, tmp_path
):
    asked = []

    def recall(files, ask, compute):
        asked.append(([path.name for path in files], ask(), compute()))
        return "kept"

    monkeypatch.setattr(identity, "recall_hash", recall)
    names = ("b.safetensors", "a.bin", "c.pt", "d.pth", "e.ckpt", "f.h5", "g.msgpack")
    (tmp_path / "sub").mkdir()
    for name in (*names, "x.json", "sub/h.bin"):
        (tmp_path / name).write_text("x")
    (tmp_path / "folder.bin").mkdir()
    model = nn.Linear(2, 1)
    hashed = identity.hash_loaded_weights(model, {"bias"}, [str(tmp_path)])
    assert hashed == "kept"
    ((files, key, whole),) = asked
    assert files == [*sorted(names), "h.bin"]
    assert key == ["weights", ["bias"], identity.hash_some_weights(model)]
    assert whole == identity.hash_weights(model, {"bias"})
    assert whole != identity.hash_weights(model)
    model.quantization_method = "x"
    identity.hash_loaded_weights(model, (), [str(tmp_path)])
    assert asked[-1][:2] == ([], ["weights", [], key[2]])
    del model.quantization_method
    model.quantization_config = "x"
    identity.hash_loaded_weights(model, (), [str(tmp_path), str(tmp_path / "sub")])
    assert asked[-1][0] == [*sorted(names), "h.bin", "h.bin"]


def test_a_quick_hash_tells_names_and_shapes_apart():
    x = torch.arange(6.0)

    def hashed(name, value):
        model = nn.Module()
        model.register_parameter(name, nn.Parameter(value))
        return identity.hash_some_weights(model)

    found = [hashed("a", x), hashed("b", x), hashed("a", x.view(2, 3))]
    found += [hashed("a", x.to(torch.bfloat16)), hashed("a", x.to("meta"))]
    assert len(set(found)) == 5


def test_every_part_of_a_packed_weight_counts(monkeypatch):
    def hashed(**state):
        monkeypatch.setattr(identity, "_read_state", lambda _model: state)
        return identity.hash_weights(nn.Module())

    x, y = torch.ones(2), torch.zeros(2, dtype=torch.int8)
    found = [
        hashed(w=(x, y, 3)),
        hashed(w=(x, y, 4)),
        hashed(w=(x, y + 1, 3)),
        hashed(w=(x + 1, y, 3)),
        hashed(w=(x.view(2, 1), y, 3)),
        hashed(v=(x, y, 3)),
        hashed(w=(y, x, 3)),
    ]
    assert len(set(found)) == len(found)
    assert hashed(w=(x, y, 3), v=x) == hashed(v=x, w=(x, y, 3))


@pytest.mark.filterwarnings("ignore:torch.quantize_per")
def test_rows_that_are_quantised_with_scales_of_floating_point():
    scales, zeros = torch.tensor([0.5, 0.25]), torch.tensor([0.5, 1.5])
    kind = torch.quint8
    given = (torch.ones(2, 3), scales, zeros, 0, kind)
    x = torch.quantize_per_channel(*given)
    assert x.qscheme() == torch.per_channel_affine_float_qparams
    _, scale, zero = identity._iter_tensors(x)
    assert scale.tolist() == [0.5, 0.25] and zero.tolist() == [0.5, 1.5]


# ---- files of word vectors and embeddings


def test_lines_of_word_vectors_end_at_line_feeds(tmp_path):
    """A header is the first line alone; gzip is unpacked; what is no text is an error."""
    path = tmp_path / "v.txt"
    path.write_bytes("a 1\nb 2\nc\u00a0c 3\nd\re 4\n".encode())
    found = vectors.word_vectors(str(path), ["b", "c\u00a0c", "a", "d\re"], [])
    assert found.matrix.flatten().tolist() == [2, 3, 0, 4], "a is taken for the header"
    packed = tmp_path / "v.txt.gz"
    packed.write_bytes(gzip.compress(b"a 1 2\nb 3 4\n"))
    found = vectors.word_vectors(str(packed), ["b"], [])
    assert (found.matrix.tolist(), found.source) == ([[3, 4]], "v.txt.gz")
    packed.write_bytes(gzip.compress(b"a 1 2\nb 3 4\n")[:-9])
    message = sentence(vectors.word_vectors, str(packed), ["b"], [])
    assert message.startswith(f"expected a complete gzip file at {packed}; got ")
    assert message.endswith("Cure: download it again")
    path.write_bytes(b"a 1 2\nb\xff 3 4\n")
    message = sentence(vectors.word_vectors, str(path), ["a"], [])
    assert message.startswith(f"expected a text file of vectors at {path}; got ")
    assert message.endswith("Cure: convert a binary file to text first")
    path.write_text("a 1 2 3\nb 1 2\n")
    assert sentence(vectors.word_vectors, str(path), ["a", "b"], []) == (
        f"expected 3 numbers in every line of {path}; got 2 in line 2. "
        "Cure: name a GloVe or fastText file"
    )


def test_words_of_a_checkpoint_are_means_of_their_pieces(monkeypatch):
    """Rows are those of the words asked for; a word with an unknown piece, or without pieces, has zeros."""
    table = nn.Embedding(5, 2)
    with torch.no_grad():
        table.weight.copy_(torch.arange(10.0).view(5, 2))
    pieces = {"one": [1], "two": [1, 3], "odd": [2, 0], "none": []}
    asked = []

    class Tokenizer:
        unk_token_id = 0

        def tokenize(self):
            """Is there."""

        def __call__(self, words, **how):
            asked.append((words, how))
            return {"input_ids": [pieces[word] for word in words]}

    model = SimpleNamespace(get_input_embeddings=lambda: table)
    subject = SimpleNamespace(model=model, processor=Tokenizer(), name="short")
    monkeypatch.setattr("anisoscope.models.load.load", lambda _name: subject)
    words = ["[CLS]", "two", "odd", "one", "none"]
    found = vectors.word_vectors("o/m", words, ["[CLS]"])
    assert found.matrix.tolist() == [[0, 0], [4, 5], [0, 0], [2, 3], [0, 0]]
    assert (found.found, found.source) == (2, "short")
    assert asked == [(words[1:], {"add_special_tokens": False})]
    subject.processor = None
    assert sentence(vectors.word_vectors, "o/m", words, []) == (
        "expected a checkpoint with an embedding matrix of tokens; got o/m. Cure: name a text model"
    )
