"""What the name of a corpus means: a preset, a copy, a path or a data set of the hub, and which part of it."""

import pytest
from PIL import Image

from anisoscope.data import corpora
from anisoscope.data.corpora import Columns, CorpusOptions, HubPart, NamedCorpus
from anisoscope.errors import CorpusError, UsageError

TABLE = {
    "made": NamedCorpus("text", "made by a function", maker="json:loads"),
    "hubbed": NamedCorpus(
        "text", "of the hub", hub="owner/set:own", split="validation", cure="ask them"
    ),
    "plain": NamedCorpus("image", "of the hub", hub="owner/pics", split="test"),
    "a:b": NamedCorpus("text", "a name with a colon", hub="owner/colon:own"),
    "classed": NamedCorpus("labelled", "with classes", hub="owner/classes"),
}


@pytest.fixture(autouse=True)
def table(monkeypatch, tmp_path):
    """A table of five presets, an empty folder to work in, and no folder of data."""
    monkeypatch.setattr(corpora, "named_corpora", lambda: TABLE)
    monkeypatch.delenv("ANISOSCOPE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def resolve(name, modality="text", **options):
    return corpora.resolve_corpus(name, modality, CorpusOptions(**options))


ALL = {"split": "train", "config": "c", "revision": "r"}


@pytest.mark.parametrize(
    ("name", "modality", "options", "part"),
    [
        ("hubbed", "text", {}, ("owner/set", "own", "validation", None, "ask them")),
        ("hubbed", "text", ALL, ("owner/set", "c", "train", "r", "ask them")),
        ("hubbed:o@v2", "text", {}, ("owner/set", "o", "validation", "v2", "ask them")),
        ("hubbed:o@v2", "text", {"config": "o", "revision": "v2"},
         ("owner/set", "o", "validation", "v2", "ask them")),
        ("hubbed@v2", "text", {}, ("owner/set", "own", "validation", "v2", "ask them")),
        ("plain", "image", {}, ("owner/pics", None, "test", None, "")),
        ("plain", "text", {}, ("plain", None, None, None, "")),
        ("a:b", "text", {}, ("owner/colon", "own", None, None, "")),
        ("a:b", "text", ALL, ("owner/colon", "c", "train", "r", "")),
        ("a:c", "text", {}, ("a", "c", None, None, "")),
        ("x/y", "speech", ALL, ("x/y", "c", "train", "r", "")),
        ("x/y:o@refs/convert/parquet", "text", {"split": "dev"},
         ("x/y", "o", "dev", "refs/convert/parquet", "")),
        ("imdb", "text", {}, ("imdb", None, None, None, "")),
        ("x/imdb.2", "image", {}, ("x/imdb.2", None, None, None, "")),
    ],
)  # fmt: skip
def test_a_data_set_of_the_hub_is_named_with_its_part(name, modality, options, part):
    """What the user asks for goes before what is in the name, and both before what the preset has."""
    id, config, split, revision, cure = part
    found = resolve(name, modality, **options)
    assert found == HubPart(name, modality, id, config, split, revision, cure)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hubbed:o", {"config": "c"}, "one config; got hubbed:o and config c"),
        ("hubbed@v1", {"revision": "v2"}, "one revision; got hubbed@v1 and revision v2"),
        ("x/y:o", {"config": "c"}, "one config; got x/y:o and config c"),
        ("x/y@v1", {"revision": "v2"}, "one revision; got x/y@v1 and revision v2"),
    ],
)  # fmt: skip
def test_a_part_that_is_named_twice_must_be_the_same(name, options, message):
    with pytest.raises(UsageError) as error:
        resolve(name, **options)
    assert str(error.value) == f"expected {message}. Cure: give it once"


@pytest.mark.parametrize(
    ("name", "modality", "kind"),
    [
        ("gone.txt", "text", "a corpus: a path"),
        ("gone.jsonl.gz", "text", "a corpus: a path"),
        ("./gone", "text", "a corpus: a path"),
        ("builtin:gone", "text", "a corpus: a path"),
        ("two words", "text", "a corpus: a path"),
        ("x/y/z", "text", "a corpus: a path"),
        ("gone", "image", "an image corpus: a folder, a manifest"),
        ("gone", "speech", "a speech corpus: a folder, a manifest"),
    ],
)
def test_what_cannot_be_on_the_hub_is_a_slip(name, modality, kind):
    """Similar names are those of the same modality; without a folder of data that is mentioned."""
    with pytest.raises(CorpusError) as error:
        resolve(name, modality)
    text = str(error.value)
    expected = f"expected {kind}, a built-in name or a hub data set; got {name!r}, which does not exist. Cure: "
    assert text.startswith(expected)
    assert text.endswith(" (ANISOSCOPE_DATA, a folder of corpora, is not set)")
    assert ("plain" in text) == (modality == "image")
    assert ("hubbed" in text) == (modality == "text")


def test_a_corpus_of_a_function_has_no_parts_and_no_columns():
    assert resolve("made") is TABLE["made"]
    assert TABLE["made"].make("[1, 2]") == [1, 2]
    for given in ({"split": "s"}, {"config": "s"}, {"revision": "s"}, {"column": "s"}):
        (option,) = given
        with pytest.raises(UsageError) as error:
            resolve("made", **given)
        assert (
            str(error.value)
            == f"expected no --{option} with this kind of corpus; got --{option} with made. Cure: leave --{option} out"
        )
    with pytest.raises(UsageError) as error:
        resolve("made", split="", column="x")
    assert (
        str(error.value)
        == "expected no --split, --column with this kind of corpus; got --split, --column with made. "
        "Cure: leave --split, --column out"
    )


def test_a_path_goes_before_the_hub_and_has_no_parts(tmp_path):
    (tmp_path / "imdb").mkdir()
    found = resolve("imdb", column="x")
    assert found.resolve() == tmp_path / "imdb"
    for option in ("split", "config", "revision"):
        with pytest.raises(UsageError, match=f"no --{option} with this kind"):
            resolve("imdb", **{option: "x"})


def test_a_copy_of_a_preset_is_read_instead_of_the_hub(tmp_path, monkeypatch):
    """The copy has two configurations; of the preset's own the split asked for is read, else the preset's."""
    for folder in ("own", "other"):
        (tmp_path / "copy" / folder).mkdir(parents=True)
        for split in ("train", "validation"):
            (tmp_path / "copy" / folder / f"{split}.txt").write_text("x")
    monkeypatch.setenv("ANISOSCOPE_DATA_HUBBED", str(tmp_path / "copy"))
    assert resolve("hubbed") == tmp_path / "copy" / "own" / "validation.txt"
    assert resolve("hubbed", split="train") == tmp_path / "copy" / "own" / "train.txt"
    for option in ("config", "revision"):
        with pytest.raises(UsageError) as error:
            resolve("hubbed", **{option: "x"})
        assert (
            str(error.value)
            == f"expected no --{option} with this kind of corpus; got --{option} with hubbed. "
            f"Cure: leave --{option} out"
        )
    for name in ("hubbed:own", "hubbed@v1"):
        assert isinstance(resolve(name), HubPart), "another part than the copy is of"


def test_a_name_of_the_hub_has_a_configuration_and_a_revision():
    for name, parts in (
        ("imdb", ("imdb", None, None, True)),
        ("a/b.c-d", ("a/b.c-d", None, None, True)),
        ("a/b:c.1@v1/x", ("a/b", "c.1", "v1/x", True)),
        ("a/b@main", ("a/b", None, "main", True)),
        ("a b", ("a b", None, None, False)),
        ("a/b/c:d", ("a/b/c:d", None, None, False)),
    ):
        assert tuple(corpora._parse_hub_name(name)) == parts


def test_what_to_do_if_there_is_no_such_data_set(tmp_path, monkeypatch):
    """The cure of the preset, else names like the one that was typed."""
    part = HubPart("hubbd", "text", "owner/plain")
    unset = " (ANISOSCOPE_DATA, a folder of corpora, is not set)"
    assert part.suggestion == f"did you mean hubbed?{unset}"
    assert HubPart("hubbd", "text", "x", cure="ask").suggestion == "ask"
    assert (
        HubPart("plan", "image", "hubbed").suggestion == f"did you mean plain?{unset}"
    )
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    assert part.suggestion == "did you mean hubbed?"
    assert corpora._suggest("zz", "text") == "known names: a:b, hubbed, made"


@pytest.mark.parametrize(
    ("name", "modality", "opener", "extra"),
    [
        ("hubbed", None, "anisoscope.data.text:open_text", []),
        ("hubbed", "speech", "anisoscope.data.text:open_text", []),
        ("plain", None, "anisoscope.data.images:open_images",
         [("models", "to read image (plain)")]),
        ("plain", "text", "anisoscope.data.images:open_images",
         [("models", "to read image (plain)")]),
        ("classed", None, "anisoscope.data.opening:open_labelled", []),
        ("classed", "text", "anisoscope.data.text:open_text", []),
        ("unknown", None, "anisoscope.data.text:open_text", []),
        ("unknown", "labelled", "anisoscope.data.opening:open_labelled", []),
        ("unknown", "speech", "anisoscope.data.speech:open_speech",
         [("speech", "to read speech (unknown)")]),
    ],
)  # fmt: skip
def test_a_preset_says_itself_what_it_holds(monkeypatch, name, modality, opener, extra):
    """Its modality goes before the one asked for, but texts with classes may be read as texts."""
    asked, needed = [], []

    def find(function):
        asked.append(function)
        return lambda *names, **options: (names, options)

    monkeypatch.setattr(corpora, "_import_function", find)
    monkeypatch.setattr(corpora, "require_extra", lambda *given: needed.append(given))
    opened = corpora.open_corpus(name, modality=modality, limit=3)
    assert opened == ((name,), {"limit": 3})
    assert asked == [opener] and needed == extra


def test_a_modality_that_nothing_reads():
    with pytest.raises(UsageError) as error:
        corpora.open_corpus("x", modality="video")
    assert (
        str(error.value)
        == "expected a modality out of text, image, speech, labelled; got 'video'"
    )


def test_the_list_of_corpora_holds_presets_and_then_what_is_here(tmp_path, monkeypatch):
    """A preset that is here too is one of this machine."""
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "pictures" / "a.png")
    (tmp_path / "news.txt").write_text("x")
    (tmp_path / "made.txt").write_text("x")
    listed = corpora.list_corpora()
    assert list(listed) == [*TABLE, "news", "pictures"]
    assert listed["hubbed"] is TABLE["hubbed"] and "pictures" not in TABLE
    assert listed["pictures"] == NamedCorpus("image", "folder of $ANISOSCOPE_DATA")
    assert listed["news"] == NamedCorpus("text", "file of $ANISOSCOPE_DATA")
    assert listed["made"] == listed["news"]


def test_options_are_checked_before_anything_is_read():
    for limit in (0, -3):
        with pytest.raises(UsageError) as error:
            CorpusOptions(limit=limit)
        assert (
            str(error.value)
            == f"expected a limit of at least 1 unit; got {limit}. Cure: raise --limit, or leave it out"
        )
    assert CorpusOptions(limit=1).limit == 1
    for rule in ("tokens:0", "lines", "tokens:"):
        with pytest.raises(UsageError, match="--documents out of auto, file, blank-li"):
            CorpusOptions(documents=rule)
    assert CorpusOptions(documents="tokens:7").documents == "tokens:7"
    CorpusOptions(column="x").refuse("n", "split", "config", "revision")


def test_columns_are_named_by_their_role():
    columns = Columns(
        text_column="t",
        second_column="s",
        label_column="l",
        rationale_column="r",
        split_column="p",
    )
    roles = {"text": "t", "second": "s", "label": "l", "rationale": "r", "split": "p"}
    assert columns.by_role == roles
    assert Columns(**Columns.as_fields(roles)) == columns
    assert Columns(label_column="l").by_role == {"label": "l"}
    assert Columns().by_role is None and Columns.as_fields(None) == {}
