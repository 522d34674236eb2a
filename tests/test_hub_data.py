"""Data sets of the hub, against a server on this machine that speaks its protocol: names, failures, what is kept."""

import io
import json
import subprocess

import datasets
import numpy as np
import pytest
from hub_server import Hub
from PIL import Image
from quick import quick

COMMIT, NEXT = "c" * 40, "d" * 40

OPENER = """
import json, sys
from anisoscope.data.corpora import open_corpus
from anisoscope.data.opening import open_labelled
from anisoscope.errors import AnisoscopeError
for line in sys.stdin:
    name, modality, options = json.loads(line)
    try:
        found = open_labelled(name) if modality == "labelled" else open_corpus(name, modality=modality, **options)
        told = {"source": found.source, "fingerprint": found.fingerprint}
        told["count"] = len(found.documents) if modality == "text" else found.source.get("items")
    except AnisoscopeError as error:
        told = {"error": type(error).__name__, "text": str(error), "code": error.exit_code}
    print(json.dumps(told), flush=True)
"""


class Opener:
    """A process for which a hub is the hub; opens corpora by name."""

    def __init__(self, hub, home, **variables):
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        environment = hub.environment(home, TMPDIR=str(home / "tmp"), **variables)
        environment.pop("ANISOSCOPE_DATA", None)
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen(
            [*quick(), "-c", OPENER], env=environment, text=True, **pipes
        )

    def __call__(self, name, modality="text", **options):
        self.process.stdin.write(json.dumps([name, modality, options]) + "\n")
        self.process.stdin.flush()
        return json.loads(
            self.process.stdout.readline() or '{"error": "the process ended"}'
        )

    def close(self):
        return self.process.communicate(timeout=60)[1]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Data sets as they lie on the hub: texts with labels, pictures in two files, a script, nothing."""
    root = tmp_path_factory.mktemp("sets")
    texts = {
        "text": [f"text number {k}" for k in range(40)],
        "label": [k % 2 for k in range(40)],
    }
    made = {name: root / name for name in ("texts", "pictures", "script", "empty")}
    for folder in made.values():
        folder.mkdir()
        (folder / "README.md").write_text("nothing to see")
    for split in ("train", "test"):
        datasets.Dataset.from_dict(texts).to_parquet(
            str(made["texts"] / f"{split}.parquet")
        )
    for part in range(2):
        rows = {"image": [picture(10 * part + k) for k in range(10)]}
        images = datasets.Dataset.from_dict(
            rows, datasets.Features({"image": datasets.Image()})
        )
        images.to_parquet(
            str(made["pictures"] / f"validation-{part:05d}-of-00002.parquet")
        )
    (made["script"] / "script.py").write_text("raise SystemExit('this was run')")
    return made


def picture(seed):
    body = io.BytesIO()
    Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    ).save(body, "PNG")
    return {"bytes": body.getvalue(), "path": f"{seed}.png"}


@pytest.fixture
def hub(folders):
    with Hub() as hub:
        for name, folder in folders.items():
            hub.add(f"datasets/someone/{name}", {COMMIT: folder})
        hub.add("datasets/someone/gated", {COMMIT: folders["texts"]}, gated=True)
        for old in ("texts", "other/old"):
            hub.renamed[f"datasets/{old}"] = "datasets/someone/texts"
        yield hub


@pytest.fixture
def opener(hub, tmp_path):
    opener = Opener(hub, tmp_path)
    yield opener
    assert "Traceback" not in opener.close()


def test_ids_that_were_renamed_are_resolved(opener):
    """`wikitext`, `imdb` and `esnli` of old: the files were looked for under the old name, in vain."""
    whole = opener("someone/texts")
    assert whole["count"] == 40 and whole["source"]["id"] == "someone/texts", whole
    for name in ("texts", "other/old", "texts:default@main"):
        told = opener(name)
        assert (
            told.get("fingerprint") == whole["fingerprint"]
            and told["source"]["id"] == "someone/texts"
        ), told
        assert told["source"]["commit"] == COMMIT
    labelled = opener("other/old", "labelled")
    assert labelled["source"]["id"] == "someone/texts"


UNREADABLE = {
    "someone/script": (
        "a script, which is no longer run",
        "someone/script@refs/convert/parquet",
    ),
    "someone/empty": ("none that can be read", "name another data set"),
    "someone/gated": ("a gated", "accept its terms"),
    "someone/texts:another": ("another", "someone/texts:CONFIGURATION"),
    "someone/nothing": ("neither here nor on the hub", "hf auth login"),
    "someone/texts@v9": ("v9", "leave the revision out for the newest"),
}


def test_what_cannot_be_read_is_told_apart(opener):
    for name, (got, cure) in UNREADABLE.items():
        told = opener(name)
        assert told.get("error") == "CorpusError" and told["code"] == 4, (name, told)
        assert got in told["text"] and cure in told["text"].partition("Cure: ")[2], (
            name,
            told,
        )


FAULTS = {
    "html": "a page that is not the hub's and no such copy",
    401: "those who are logged in (401)",
    403: "without the right to read it (403)",
    429: "too many requests for the hub (429) and no such copy",
    500: "a failure of the hub itself (500) and no such copy",
    503: "a failure of the hub itself (503) and no such copy",
}


def test_failures_of_the_hub_are_told_apart_for_data_too(hub, opener):
    for fault, expected in FAULTS.items():
        hub.fault = fault
        told = opener("someone/texts")
        assert told.get("code") == 4 and expected in told["text"], (fault, told)


def test_a_token_that_is_not_valid_any_more_does_not_keep_public_data_away(
    hub, tmp_path
):
    opener = Opener(hub, tmp_path, HF_TOKEN="hf_stale")
    told, gated = opener("someone/texts"), opener("someone/gated")
    assert told.get("count") == 40 and "refuses the token" in told["source"]["hub"], (
        told
    )
    assert gated["code"] == 4 and "gated" in gated["text"], gated
    assert "Traceback" not in opener.close()


def bodies(hub):
    return sorted({line for line in hub.fetched if line.endswith(".parquet")})


def test_pictures_are_streamed_once(hub, tmp_path):
    """They were streamed anew by every run, into a file of /tmp that a run of ImageNet fills."""
    opener = Opener(hub, tmp_path)
    first = opener("someone/pictures", "image", limit=4)
    assert first.get("count") == 4 and len(bodies(hub)) == 1, (first, hub.fetched)
    hub.fetched.clear()
    assert opener("someone/pictures", "image", limit=4) == first and not hub.fetched
    assert (
        opener("someone/pictures", "image", limit=3)["count"] == 3 and not hub.fetched
    )
    whole = opener("someone/pictures", "image")
    assert whole["count"] == 20 and whole["source"]["commit"] == COMMIT
    hub.fetched.clear()
    assert "Traceback" not in opener.close()
    again = Opener(hub, tmp_path)
    assert again("someone/pictures", "image") == whole and not hub.fetched
    hub.fault = 503
    alone = again("someone/pictures", "image")
    assert (
        alone["fingerprint"] == whole["fingerprint"]
        and alone["source"]["commit"] == COMMIT
    )
    assert "a failure of the hub itself (503)" in alone["source"]["hub"]
    assert not [path for path in (tmp_path / "tmp").rglob("*") if path.is_file()]
    assert "Traceback" not in again.close()


@pytest.mark.parametrize("rest", [b"", b'["half a line'])
def test_what_was_cut_off_while_it_was_kept_goes_on(hub, folders, tmp_path, rest):
    """A process that is killed leaves half a picture and half a line."""
    opener = Opener(hub, tmp_path)
    opener("someone/pictures", "image", limit=6)
    (items,) = tmp_path.rglob("items")
    whole = items.read_bytes()
    items.write_bytes(whole[: len(whole) - len(whole) // 12])
    with items.open("ab") as body:
        body.write(rest)
    told = opener("someone/pictures", "image")
    opener.close()
    with Hub() as other:
        other.add("datasets/someone/pictures", {COMMIT: folders["pictures"]})
        fresh = Opener(other, tmp_path / "other")
        assert (
            fresh("someone/pictures", "image")["fingerprint"] == told["fingerprint"]
            and told["count"] == 20
        )
        fresh.close()
