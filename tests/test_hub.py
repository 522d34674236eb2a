"""Download, pinning, cache, failures and offline use, against a server on this machine that speaks the hub's protocol.

What must never load as other weights (a body that is not what was announced) stands in test_no_silent_wrong_number.py.
"""

import json
import shutil
import subprocess

import pytest
import torch
from hub_server import Hub
from program import WITHOUT_PAGE
from quick import quick
from safetensors.torch import load_file
from transformers import BertConfig, BertModel, BertTokenizerFast

REPOSITORY = "tester/tiny-bert"
OLD, NEW = "a" * 40, "b" * 40
REVISIONS = {"main": NEW, "step1": OLD, "step2": OLD, "step4": NEW, "step16": NEW}

LOADER = """
import json, sys, time
from anisoscope.errors import AnisoscopeError
from anisoscope.models.load import load
for line in sys.stdin:
    name = line.strip()
    began = time.monotonic()
    try:
        subject = load(name)
        told = {"revision": subject.revision, "weights": subject.weights_sha256, "tokens": len(subject.processor)}
        told["notes"] = subject.notes
    except AnisoscopeError as error:
        told = {"error": type(error).__name__, "text": str(error), "code": error.exit_code}
    print(json.dumps({**told, "seconds": time.monotonic() - began}), flush=True)
"""


def served(folders):
    """A hub with the one repository."""
    hub = Hub()
    hub.add(REPOSITORY, folders, refs=dict(REVISIONS))
    return hub


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A tiny BERT in hub format, at two revisions with other weights."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"w{k}" for k in range(95)),
    ]
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    made = {}
    for seed, commit in enumerate((OLD, NEW)):
        made[commit] = tmp_path_factory.mktemp(commit[:3])
        torch.manual_seed(seed)
        BertModel(BertConfig(vocab_size=100, **sizes)).save_pretrained(made[commit])
        BertTokenizerFast(
            vocab={word: k for k, word in enumerate(words)}
        ).save_pretrained(made[commit])
    return made


class Loader:
    """A new process, which reads the address of the hub as it starts, and loads models by name."""

    def __init__(self, hub, home, **variables):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [*quick(), "-c", LOADER]
        self.process = subprocess.Popen(
            command, env=hub.environment(home, **variables), text=True, **pipes
        )

    def __call__(self, *names):
        """What each load came to."""
        self.process.stdin.write("".join(f"{name}\n" for name in names))
        self.process.stdin.flush()
        return [json.loads(self.process.stdout.readline()) for _ in names]

    def close(self):
        """What was written to stderr."""
        return self.process.communicate(timeout=120)[1]


PINNED, UNKNOWN = (
    (f"{REPOSITORY}@step1", f"{REPOSITORY}@{OLD}"),
    (f"{REPOSITORY}@step3", "tester/tiny-bart"),
)


class Visit:
    """Loads with the hub up, then, when it is gone, in the same process and in one that is told to stay offline."""

    def __init__(self, folders, home):
        hub = served(folders)
        online, offline = Loader(hub, home), Loader(hub, home, HF_HUB_OFFLINE="1")
        try:
            self.online = online(REPOSITORY, PINNED[0], REPOSITORY, *UNKNOWN)
        finally:
            hub.close()
        again = (REPOSITORY, *PINNED, *UNKNOWN)
        self.cached = {"no hub": online(*again), "offline": offline(*again)}
        self.fetched, self.stderr = hub.fetched, online.close() + offline.close()


@pytest.fixture(scope="module")
def visit(folders, tmp_path_factory):
    return Visit(folders, tmp_path_factory.mktemp("home"))


def test_a_checkpoint_is_downloaded_at_the_newest_or_at_the_pinned_revision(visit):
    newest, pinned, *_ = visit.online
    assert (newest["revision"], pinned["revision"]) == (NEW, OLD)
    assert newest["weights"] != pinned["weights"] and newest["tokens"] == 100


def test_the_second_load_comes_from_the_cache(visit):
    first, _, second, *_ = visit.online
    assert (first["revision"], first["weights"]) == (
        second["revision"],
        second["weights"],
    )
    assert len(visit.fetched) == len(set(visit.fetched)), "a file was fetched twice"
    assert {
        "a model.safetensors",
        "b model.safetensors",
        "b config.json",
        "b tokenizer.json",
    } <= set(visit.fetched)


def test_unknown_revisions_and_unknown_models_are_named(visit):
    revision, model = visit.online[3:]
    assert revision["error"] == model["error"] == "ModelError"
    assert (
        "a revision of tester/tiny-bert; got step3. Cure: leave the revision out"
        in revision["text"]
    )
    assert (
        "got 'tester/tiny-bart', which is neither a folder here nor on the hub. Cure: "
        in model["text"]
    )
    assert (
        "builtin:minilm" in model["text"]
        and max(revision["seconds"], model["seconds"]) < 10
    )


@pytest.mark.parametrize("how", ["no hub", "offline"])
def test_without_the_hub_the_cache_serves_quickly(visit, how):
    loads = visit.cached[how]
    assert [x.get("weights") for x in loads[:3]] == [
        visit.online[k]["weights"] for k in (0, 1, 1)
    ]
    assert [x.get("revision") for x in loads[:3]] == [NEW, OLD, OLD]
    for failed in loads[3:]:
        assert (
            failed["error"] == "ModelError" and "and not in the cache" in failed["text"]
        )
        assert (
            "builtin:minilm or a local folder (HF_HOME" in failed["text"]
            and failed["seconds"] < 10
        )


def test_without_the_hub_nothing_is_said_of_retries(visit):
    assert "Retrying" not in visit.stderr and "Traceback" not in visit.stderr


def test_a_series_is_found_measured_and_let_go_of(folders, tmp_path):
    """Revisions that an ellipsis stands for; equal weights under several names; one checkpoint on the disk at a time;
    what is finished is not downloaded again.
    """
    texts = [json.dumps({"text": f"w{i} w{i + 1} w{2 * i}"}) for i in range(9)]
    (tmp_path / "text.jsonl").write_text("\n".join(texts))
    command = [
        *quick(),
        "-c",
        WITHOUT_PAGE,
        "measure",
        f"{REPOSITORY}@step{{1,2,…,16}}",
        "--panel",
        "hidden",
    ]
    command += [
        "--corpus",
        str(tmp_path / "text.jsonl"),
        "-o",
        str(tmp_path / "series"),
        "--keep",
        "1",
        "--quiet",
    ]
    hub = served(folders)
    variables = hub.environment(tmp_path / "home")
    found, downloads = [], []
    try:
        for more in (["--dry-run"], [], []):
            found.append(
                subprocess.run(
                    [*command, *more], env=variables, text=True, capture_output=True
                )
            )
            downloads.append([name for name in hub.fetched if "safetensors" in name])
    finally:
        hub.close()
    assert [done.returncode for done in found] == [0, 0, 0], found[1].stderr
    assert "seed 0: 4 steps 1, 2, 4, 16" in found[0].stdout
    once = ["a model.safetensors", "b model.safetensors"]
    assert downloads == [[], once, once]
    assert (
        f"the same weights, bit for bit: {REPOSITORY}@step1, {REPOSITORY}@step2"
        in found[1].stderr
    )
    assert (
        len(list((tmp_path / "home").glob("hub/models--*/snapshots/*/*.safetensors")))
        == 1
    )
    assert found[1].stdout == found[2].stdout


LEFT = """
import sys
from anisoscope.models.download import fetch, is_left_over
from anisoscope.runs.series import _CheckpointStore
here, *names = sys.argv[1:]
fetch(here, lent=False)
fetch(names[0])  # by a series that was cut off
shelf = _CheckpointStore(names[1:], 1, [here, names[0]])
print(is_left_over(here), [is_left_over(name) for name in names])
for i in range(2):
    shelf.get(i, None)
    print([is_left_over(name) for name in names])
"""


def test_what_an_interrupted_series_has_left_is_let_go_of(folders, tmp_path):
    """A rehearsal that was begun again left `multiberts-seed_0-step_0k` on the disk for good."""
    names = [f"{REPOSITORY}-{k}" for k in range(4)]
    with Hub() as hub:
        for name in names:
            hub.add(name, {NEW: folders[NEW]})
        environment = hub.environment(tmp_path)
        done = subprocess.run(
            [*quick(), "-c", LEFT, *names],
            env=environment,
            text=True,
            capture_output=True,
        )
    assert done.stdout.splitlines() == [
        "False [False, False, False]",
        "[False, True, False]",
        "[False, False, True]",
    ], done.stderr
    kept = sorted(
        path.parts[-4]
        for path in tmp_path.glob("hub/models--*/snapshots/*/model.safetensors")
    )
    assert [name[-1] for name in kept] == ["0", "3"]


def test_only_what_is_read_is_fetched_and_nobody_is_asked_to_convert_it(
    folders, tmp_path
):
    """A checkpoint of pickles started a thread that asks a service of the hub to convert it."""
    pickled, adapter, gguf = (
        tmp_path / name for name in ("pickled", "adapter", "gguf")
    )
    shutil.copytree(folders[NEW], pickled)
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    (pickled / "tf_model.h5").write_bytes(b"another format")
    for folder, name in ((adapter, "adapter_config.json"), (gguf, "model.Q4_K_M.gguf")):
        folder.mkdir()
        (folder / name).write_text("{}")
    with served(folders) as hub:
        for folder in (pickled, adapter, gguf):
            hub.add(f"tester/{folder.name}", {NEW: folder})
        loader = Loader(hub, tmp_path / "home")
        whole, loaded, *others = loader(
            REPOSITORY, "tester/pickled", "tester/adapter", "tester/gguf"
        )
        loader.close()
    assert loaded.get("weights") == whole["weights"], loaded
    asked = [
        line
        for line in hub.requests
        if not line.startswith(("GET /", "HEAD /")) or "discussions" in line
    ]
    assert not asked and not any("h5" in line or "gguf" in line for line in hub.fetched)
    assert all(told["code"] == 3 for told in others)
    assert (
        "an adapter (LoRA, PEFT)" in others[0]["text"] and "GGUF" in others[1]["text"]
    )


# ---- a hub that fails: each failure told apart, and the cache in its place

FAULTS = {
    "html": ("a page that is not the hub's", "log in to it with a browser"),
    "redirect": ("a page that is not the hub's", "log in to it with a browser"),
    "json": ("a page that is not the hub's", "HF_ENDPOINT"),
    401: ("an answer only for those who are logged in (401)", "hf auth login"),
    403: ("without the right to read it (403)", "accept the repository's terms"),
    404: ("neither a folder here nor on the hub", "check HF_ENDPOINT"),
    429: ("too many requests for the hub (429)", "wait 7 s"),
    500: ("a failure of the hub itself (500)", "try again later"),
    503: ("a failure of the hub itself (503)", "try again later"),
    "gone": ("no network and not in the cache", "connect to the network"),
}
"""What the hub does → what the error says, and its cure."""


class Trouble:
    """Loads from hubs that fail, by failure: with nothing in the cache, and with a copy there."""

    def __init__(self, folders, home):
        hub = served(folders)
        cold, warm = Loader(hub, home / "cold"), Loader(hub, home / "warm")
        first = warm(REPOSITORY)[0]
        self.weights, self.cold, self.warm = first["weights"], {}, {}
        for fault in FAULTS:
            if fault == "gone":
                hub.close()
            hub.fault = fault
            self.cold[fault], self.warm[fault] = (
                cold(REPOSITORY)[0],
                warm(REPOSITORY)[0],
            )
        self.stderr = cold.close() + warm.close()


@pytest.fixture(scope="module")
def trouble(folders, tmp_path_factory):
    return Trouble(folders, tmp_path_factory.mktemp("trouble"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_of_the_hub_is_told_apart_from_the_others(trouble, fault):
    """A login page, a refused token and a failing server ended in tracebacks or were all "no network"."""
    told, (got, cure) = trouble.cold[fault], FAULTS[fault]
    assert told["error"] == "ModelError" and told["code"] == 3
    assert got in told["text"] and cure in told["text"].partition("Cure: ")[2], told[
        "text"
    ]
    assert "\n" not in told["text"] and len(told["text"]) < 400 and told["seconds"] < 10
    assert ("no network" in told["text"]) == (fault == "gone")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_copy_in_the_cache_serves_a_hub_that_fails_and_that_is_said(trouble, fault):
    told = trouble.warm[fault]
    assert told.get("weights") == trouble.weights and told["revision"] == NEW, told
    (note,) = told["notes"]
    assert f"the copy of {REPOSITORY} in the cache is used (commit {NEW[:12]})" in note


def test_failures_of_the_hub_leave_no_traceback(trouble):
    assert "Traceback" not in trouble.stderr and "Retrying" not in trouble.stderr


def test_files_that_fail_behind_an_answer_of_the_hub(folders, tmp_path):
    """The hub knows the model, but its files cannot be had: the whole copy in the cache serves, never half of one."""
    hub = served(folders)
    cold, warm = Loader(hub, tmp_path / "cold"), Loader(hub, tmp_path / "warm")
    try:
        (first,) = warm(f"{REPOSITORY}")
        hub.repositories[REPOSITORY].refs["main"] = OLD
        hub.fault, hub.fault_at = "html", "model.safetensors"
        (again,), (none,) = warm(REPOSITORY), cold(REPOSITORY)
    finally:
        hub.close()
        cold.close(), warm.close()
    assert (again["revision"], again["weights"]) == (NEW, first["weights"])
    assert "a page that is not the hub's" in again["notes"][0] and none["code"] == 3


def test_tokens_and_gates(folders, tmp_path):
    """A token that is not valid any more kept public models from being loaded."""
    hub = served(folders)
    hub.add("tester/gated", {NEW: folders[NEW]}, gated=True)
    hub.add("tester/private", {NEW: folders[NEW]}, private=True)
    hub.renamed["tiny-bert"] = REPOSITORY
    names = (REPOSITORY, "tester/gated", "tester/private", "tiny-bert")
    told = {}
    try:
        for token in ("", "hf_stale", "hf_good"):
            loader = Loader(
                hub, tmp_path / f"home{token}", **({"HF_TOKEN": token} if token else {})
            )
            told[token] = dict(zip(names, loader(*names), strict=True))
            assert "Traceback" not in loader.close()
    finally:
        hub.close()
    assert [token for token in told if "weights" in told[token][REPOSITORY]] == [
        "",
        "hf_stale",
        "hf_good",
    ]
    assert told["hf_stale"][REPOSITORY]["notes"] == [
        f"the hub refuses the token; {REPOSITORY} is public and was loaded without it"
    ]
    assert (
        "weights" in told["hf_good"]["tester/gated"]
        and "weights" in told["hf_good"]["tester/private"]
    )
    assert (
        "a gated repository (401). Cure: accept its terms"
        in told[""]["tester/gated"]["text"]
    )
    assert "not on the hub" in told[""]["tester/private"]["text"].replace(
        "nor on", "not on"
    )
    assert "hf auth login" in told[""]["tester/private"]["text"]
    assert (
        "a token that the hub refuses (401). Cure: `hf auth login`"
        in told["hf_stale"]["tester/private"]["text"]
    )
    assert all("weights" in told[token]["tiny-bert"] for token in told), (
        "an id that was renamed"
    )


@pytest.mark.parametrize("fault", ["html", 401, 503])
def test_revisions_of_a_hub_that_fails_are_those_in_the_cache(folders, tmp_path, fault):
    """A login page ended a series in a traceback."""
    code = "from anisoscope.models.hub import *; print(list_revisions('a/b'), does_exist('a/b'), does_exist('a/b@v1'))"
    with served(folders) as hub:
        hub.fault = fault
        environment = hub.environment(tmp_path)
        done = subprocess.run(
            [*quick(), "-c", code], env=environment, text=True, capture_output=True
        )
    assert (done.stdout, done.returncode) == ("[] False False\n", 0), done.stderr


def test_a_stale_token_does_not_hide_public_checkpoints(folders, tmp_path):
    """Of a series of revisions only those in the cache were found: none."""
    series = f"{REPOSITORY}@step{{1,2,…,16}}"
    code = f"from anisoscope.models.series import expand; print([c.step for c in expand('{series}')])"
    with served(folders) as hub:
        environment = hub.environment(tmp_path, HF_TOKEN="hf_stale")
        done = subprocess.run(
            [*quick(), "-c", code], env=environment, text=True, capture_output=True
        )
    assert (done.stdout, done.returncode) == ("[1, 2, 4, 16]\n", 0), done.stderr
