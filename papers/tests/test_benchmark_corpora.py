"""The corpora of Fosse et al. 2023: their published sizes, their public homes, and what is read of their files."""

import gzip
import json
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from anisoscope.data.encoding import build_tokenizer
from anisoscope.data.opening import open_labelled
from anisoscope.errors import CorpusError
from anisoscope_papers import benchmarks


@pytest.mark.usefixtures("data_folder")
def test_benchmarks_have_their_published_sizes():
    sizes = {
        "yelphat": ([2499, 1071, 920, 300, 439, 181], [2499, 1071, 920, 300, 439, 181]),
        "hatexplain": ([15383, 1922, 1924], [6673, 1141, 1142]),
        "esnli": ([18000, 9842, 9824], [0, 9823, 9810]),
    }
    every = {name: open_labelled(name) for name in sizes}
    for name, (examples, rationales) in sizes.items():
        found = every[name]
        assert [len(split) for split in found.splits.values()] == examples
        assert list(found.described()["rationales"].values()) == rationales
    assert found.source["unusable_highlights"] == 33
    assert every["hatexplain"].majority() == pytest.approx(782 / 1924)
    assert (
        len(build_tokenizer(every["hatexplain"], max_length=512)) == 24_993 + 1
    )  # as printed by F


def test_public_formats_are_read(tmp_path):
    note = {"label": "offensive"}
    post = {
        "post_tokens": ["a", "b"],
        "annotators": [note, note, {"label": "normal"}],
        "rationales": [[1, 0], [1, 1, 0]],
    }
    tie = post | {
        "annotators": [{"label": x} for x in ("normal", "offensive", "hatespeech")]
    }
    read = benchmarks.convert_hatexplain(
        {"1": post, "2": tie}, {"train": ["1", "2"], "val": [], "test": ["1"]}
    )
    assert (
        read["train"]
        == read["test"]
        == [
            {"tokens": ["a", "b"], "label": "offensive", "rationales": [[1, 0], [1, 1]]}
        ]
    )
    head = (
        "gold_label,Sentence1,Sentence2,Sentence1_Highlighted_1,Sentence2_Highlighted_1"
    )
    path = tmp_path / "esnli.csv"
    pairs = (
        'neutral,A man sits,A man rests,{},"0,2"',
        "neutral,,x,{},{}",
        "-,A man,A dog,{},{}",
        ",A,B,{},{}",
    )
    path.write_text("\n".join((head, *pairs)))
    (pair,) = benchmarks.read_esnli(path)
    assert pair["annotations"] == [
        {"premise_highlight": [], "hypothesis_highlight": [0, 2]}
    ]
    page = '"<span class=""active"">Good</span> <span>food</span> <span></span>"'
    other = '"<span>Good</span> <span class=""active""><i class=""x y"">food</i></span>"'  # as of browsers
    path.write_text(
        f"Input.label,Input.text,Answer.html_output\n1,Good food,{page}\n1,Good food,{other}\n"
    )
    (review,) = benchmarks.read_yelphat(path)
    assert (
        review["tokens"] == ["Good", "food"]
        and review["human_attention"] == [1, 1]
        and review["n_hams"] == 2
    )


def test_a_benchmark_comes_from_its_public_home_once(tmp_path, monkeypatch):
    """Without ANISOSCOPE_DATA; from a server that is then gone."""
    home, posts = tmp_path / "home" / "Data", {}
    home.mkdir(parents=True)
    for i in range(18):
        note = {"label": ("normal", "hatespeech", "offensive")[i % 3]}
        posts[str(i)] = {
            "post_tokens": ["word", str(i)],
            "annotators": [note] * 3,
            "rationales": [[0, 1]] * 3,
        }
    keys = list(posts)
    (home / "dataset.json").write_text(json.dumps(posts))
    divisions = {"train": keys[:6], "val": keys[6:12], "test": keys[12:]}
    (home / "post_id_divisions.json").write_text(json.dumps(divisions))
    monkeypatch.delenv("ANISOSCOPE_DATA", raising=False)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "cache"))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "home"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(
            benchmarks, "HATEXPLAIN", f"http://127.0.0.1:{server.server_port}/Data"
        )
        found = open_labelled("hatexplain")
        server.shutdown()
    assert [len(split) for split in found.splits.values()] == [6, 6, 6]
    assert found.splits["test"][0].rationale == (0, 1)
    assert open_labelled("hatexplain").fingerprint == found.fingerprint
    monkeypatch.setattr(
        benchmarks, "ESNLI", f"http://127.0.0.1:{server.server_port}/gone"
    )
    with pytest.raises(
        CorpusError, match="connect to the network, set ANISOSCOPE_DATA"
    ):
        open_labelled("esnli")


def test_words_of_an_annotator_s_page_are_marked_by_its_class_active():
    page = """<p>x</p><span class="w active">two &amp; <b>three</b></span><SPAN id='a' class='inactive'>four</SPAN>
    <span>five</span><span data-x="active">six</span><span class = 'active'></span>"""
    assert benchmarks._parse_spans(page) == (
        ["two", "&", "three", "four", "five", "six"],
        [1, 1, 1, 0, 0, 0],
    )


def test_a_damaged_line_of_a_copy_is_named(tmp_path, monkeypatch):
    lines = [json.dumps({"tokens": ["a"], "label": "normal"}), '{"tokens": ["a"], "lab']
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    (tmp_path / "hatexplain").mkdir()
    for split in ("train", "val", "test"):
        (tmp_path / "hatexplain" / f"{split}.jsonl.gz").write_bytes(
            gzip.compress("\n".join(lines).encode())
        )
    with pytest.raises(CorpusError, match=r"line 2: .*copy the file again"):
        open_labelled("hatexplain")


def test_a_name_that_is_nearly_right_is_told():
    with pytest.raises(CorpusError, match="did you mean hatexplain"):
        open_labelled("hatexplane")


@pytest.mark.parametrize(
    ("premise", "hypothesis", "shares"),
    [
        ([1], [0], (0, 1, 1, 0)),
        ([2], [0], None),
        ([1], [2], None),
        ([], [], (0, 0, 0, 0)),
    ],
    ids=["within", "behind the premise", "behind the hypothesis", "none"],
)
def test_highlights_behind_the_last_word_of_a_sentence_are_no_rationale(
    premise, hypothesis, shares
):
    notes = [{"premise_highlight": premise, "hypothesis_highlight": hypothesis}]
    row = {
        "premise": "a cat",
        "hypothesis": "it sleeps",
        "label": "neutral",
        "annotations": notes,
    }
    assert (
        benchmarks._make_pair_example(row, ("entailment", "neutral")).rationale
        == shares
    )
