"""Download, pinning, cache and offline use, against a server on this machine that speaks the hub's protocol."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

REPOSITORY = "tester/tiny-bert"
OLD, NEW = "a" * 40, "b" * 40
REVISIONS = {OLD: OLD, NEW: NEW, "main": NEW, "step1": OLD, "step2": OLD, "step4": NEW, "step16": NEW}

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
    except AnisoscopeError as error:
        told = {"error": type(error).__name__, "text": str(error)}
    print(json.dumps({**told, "seconds": time.monotonic() - began}), flush=True)
"""


class Hub(ThreadingHTTPServer):
    """Serves `folders` [commit] as the revisions of one repository and counts what is fetched, by file."""

    daemon_threads = True

    def __init__(self, folders):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folders, self.fetched = folders, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def close(self):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0].strip("/")
        if path.startswith(f"api/models/{REPOSITORY}"):
            return self.describe(path.removeprefix(f"api/models/{REPOSITORY}").strip("/").split("/"))
        if path.startswith(f"{REPOSITORY}/resolve/"):
            revision, _, name = path.removeprefix(f"{REPOSITORY}/resolve/").partition("/")
            return self.file(revision, name)
        return self.answer(404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET

    def describe(self, rest):
        if rest[0] == "refs":
            tags = [
                {"name": n, "ref": f"refs/tags/{n}", "targetCommit": REVISIONS[n]} for n in REVISIONS if "step" in n
            ]
            refs = {"branches": [{"name": "main", "ref": "refs/heads/main", "targetCommit": NEW}], "tags": tags}
            return self.answer(200, json.dumps({**refs, "converts": []}).encode(), Content_Type="application/json")
        commit = REVISIONS.get(rest[1] if len(rest) > 1 else "main")
        if commit is None:
            return self.answer(404, X_Error_Code="RevisionNotFound")
        files = sorted(path.name for path in self.server.folders[commit].iterdir())
        told = {"id": REPOSITORY, "sha": commit, "siblings": [{"rfilename": name} for name in files], "tags": []}
        if rest[0] == "tree":
            told = [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in files]
        return self.answer(200, json.dumps(told).encode(), Content_Type="application/json")

    def file(self, revision, name):
        commit = REVISIONS.get(revision)
        if commit is None:
            return self.answer(404, X_Error_Code="RevisionNotFound")
        path = self.server.folders[commit] / name
        if not path.is_file():
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        if self.command == "GET":
            self.server.fetched.append(f"{commit[0]} {name}")
        body = path.read_bytes()
        return self.answer(200, body, ETag=f'"{hashlib.sha1(body).hexdigest()}"', X_Repo_Commit=commit)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A tiny BERT in hub format, at two revisions with other weights."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{k}" for k in range(95))]
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    made = {}
    for seed, commit in enumerate((OLD, NEW)):
        made[commit] = tmp_path_factory.mktemp(commit[:3])
        torch.manual_seed(seed)
        BertModel(BertConfig(vocab_size=100, **sizes)).save_pretrained(made[commit])
        BertTokenizerFast(vocab={word: k for k, word in enumerate(words)}).save_pretrained(made[commit])
    return made


class Loader:
    """A new process, which reads the address of the hub as it starts, and loads models by name."""

    def __init__(self, address, home, **variables):
        given = {"HF_ENDPOINT": address, "HF_HOME": str(home), "OMP_NUM_THREADS": "1", **variables}
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-c", LOADER]
        self.process = subprocess.Popen(command, env={**kept, **given}, text=True, **pipes)

    def __call__(self, *names):
        """What each load came to."""
        self.process.stdin.write("".join(f"{name}\n" for name in names))
        self.process.stdin.flush()
        return [json.loads(self.process.stdout.readline()) for _ in names]

    def close(self):
        """What was written to stderr."""
        return self.process.communicate(timeout=120)[1]


PINNED, UNKNOWN = (f"{REPOSITORY}@step1", f"{REPOSITORY}@{OLD}"), (f"{REPOSITORY}@step3", "tester/tiny-bart")


class Visit:
    """Loads with the hub up, then, when it is gone, in the same process and in one that is told to stay offline."""

    def __init__(self, folders, home):
        hub = Hub(folders)
        online, offline = Loader(hub.address, home), Loader(hub.address, home, HF_HUB_OFFLINE="1")
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
    assert (first["revision"], first["weights"]) == (second["revision"], second["weights"])
    assert len(visit.fetched) == len(set(visit.fetched)), "a file was fetched twice"
    assert {"a model.safetensors", "b model.safetensors", "b config.json", "b tokenizer.json"} <= set(visit.fetched)


def test_unknown_revisions_and_unknown_models_are_named(visit):
    revision, model = visit.online[3:]
    assert revision["error"] == model["error"] == "ModelError"
    assert "a revision of tester/tiny-bert; got step3. Cure: leave it out" in revision["text"]
    assert "got 'tester/tiny-bart', which is neither a folder here nor on the hub. Cure: " in model["text"]
    assert "builtin:minilm" in model["text"] and max(revision["seconds"], model["seconds"]) < 10


@pytest.mark.parametrize("how", ["no hub", "offline"])
def test_without_the_hub_the_cache_serves_quickly(visit, how):
    loads = visit.cached[how]
    assert [x.get("weights") for x in loads[:3]] == [visit.online[k]["weights"] for k in (0, 1, 1)]
    assert [x.get("revision") for x in loads[:3]] == [NEW, OLD, OLD]
    for failed in loads[3:]:
        assert failed["error"] == "ModelError" and "its cache has no such copy" in failed["text"]
        assert "builtin:minilm or a local folder (HF_HOME" in failed["text"] and failed["seconds"] < 10


def test_without_the_hub_nothing_is_said_of_retries(visit):
    assert "Retrying" not in visit.stderr and "Traceback" not in visit.stderr


def test_a_series_is_found_measured_and_let_go_of(folders, tmp_path):
    """Revisions that an ellipsis stands for; equal weights under several names; one checkpoint on the disk at a time;
    what is finished is not downloaded again.
    """
    texts = [json.dumps({"text": f"w{i} w{i + 1} w{2 * i}"}) for i in range(9)]
    (tmp_path / "text.jsonl").write_text("\n".join(texts))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    command = [sys.executable, "-m", "anisoscope", "measure", f"{REPOSITORY}@step{{1,2,…,16}}", "--panel", "hidden"]
    command += ["--corpus", str(tmp_path / "text.jsonl"), "-o", str(tmp_path / "series"), "--keep", "1", "--quiet"]
    hub = Hub(folders)
    variables = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    found, downloads = [], []
    try:
        for more in (["--dry-run"], [], []):
            found.append(subprocess.run([*command, *more], env=kept | variables, text=True, capture_output=True))
            downloads.append([name for name in hub.fetched if "safetensors" in name])
    finally:
        hub.close()
    assert [done.returncode for done in found] == [0, 0, 0], found[1].stderr
    assert "seed 0: 4 steps 1, 2, 4, 16" in found[0].stdout
    once = ["a model.safetensors", "b model.safetensors"]
    assert downloads == [[], once, once]
    assert f"the same weights, bit for bit: {REPOSITORY}@step1, {REPOSITORY}@step2" in found[1].stderr
    assert len(list((tmp_path / "home").glob("hub/models--*/snapshots/*/*.safetensors"))) == 1
    assert found[1].stdout == found[2].stdout
