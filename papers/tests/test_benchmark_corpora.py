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


@pytest.mark.parametrize(
    ("name", "home", "files"),
    [
        (
            "yelphat",
            benchmarks.YELPHAT,
            {
                "train": ("ham_part3", "ham_part4", "ham_part5", "ham_part7"),
                "test_yelp50": ("ham_part1",),
                "test_yelp100": ("ham_part6",),
                "test_yelp200": ("ham_part8",),
            },
        ),
        (
            "esnli",
            benchmarks.ESNLI,
            {
                "train": ("esnli_train_1", "esnli_train_2"),
                "validation": ("esnli_dev",),
                "test": ("esnli_test",),
            },
        ),
    ],
    ids=["yelphat", "esnli"],
)
def test_each_published_file_is_read_into_its_own_split(monkeypatch, name, home, files):
    monkeypatch.setattr(benchmarks, "fetch", lambda url: url)
    monkeypatch.setattr(benchmarks, f"read_{name}", lambda path: [path])
    assert benchmarks.BENCHMARKS[name].home() == {
        split: [f"{home}/{file}.csv" for file in of_split]
        for split, of_split in files.items()
    }


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


def test_words_of_a_review_have_the_share_of_annotators_who_marked_them():
    row = {"tokens": ["a", "b", "c"], "label": "1", "human_attention": [2, 4, 0]}
    make = benchmarks.BENCHMARKS["yelphat"].example
    # Of five annotators; where their number is unknown, of the most marks of a word.
    found = make(row | {"n_hams": 5}, ())
    assert (found.words, found.label) == (("a", "b", "c"), 1)
    assert found.rationale == (0.4, 0.8, 0) and found.second is None
    assert make(row | {"n_hams": None}, ()).rationale == (0.5, 1, 0)
    assert make(row | {"n_hams": 3}, ()).rationale == (2 / 3, 1, 0)
    nothing = row | {"n_hams": None, "human_attention": [0, 0, 0]}
    assert make(nothing, ()).rationale == (0, 0, 0)


def test_words_of_a_post_are_marked_by_its_annotators_before_their_union():
    known = benchmarks.BENCHMARKS["hatexplain"]
    row = {"tokens": ["a", "b"], "label": "offensive", "evidence": [1, 1]}
    maps = [[1, 0], [1, 1], [1, 0], [0, 0]]
    found = known.example(row | {"rationales": maps}, known.labels)
    assert (found.label, found.rationale) == (2, (0.75, 0.25))
    assert known.example(row | {"rationales": []}, known.labels).rationale == (1, 1)
    normal = {"tokens": ["a"], "label": "normal"}
    found = known.example(normal, known.labels)
    assert (found.label, found.rationale) == (0, None)


def test_words_of_a_pair_are_numbered_as_one_text():
    known = benchmarks.BENCHMARKS["esnli"]
    row = {"premise": "a b", "hypothesis": "c d e", "label": "entailment"}

    def mark(*notes):
        names = ("premise_highlight", "hypothesis_highlight")
        given = [dict(zip(names, note, strict=True)) for note in notes]
        return known.example(row | {"annotations": given}, known.labels)

    found = mark(([0], [2]), ([0, 1], [0]), ([], [2]))
    assert (found.words, found.second) == (("a", "b"), ("c", "d", "e"))
    third = 1 / 3
    assert found.label == 1
    assert found.rationale == pytest.approx((2 * third, third, third, 0, 2 * third))
    # A highlight behind the last word of its own text is a defect, in whichever text.
    assert mark(([2], [0])).rationale is None is mark(([0], [3])).rationale
    assert mark(([1], [2])).rationale == (0, 1, 0, 0, 1)
    assert mark().rationale is None


def test_pairs_are_read_of_three_annotators_if_there_are_so_many(tmp_path):
    path = tmp_path / "test.csv"
    marks = [f"Sentence{s}_Highlighted_{i}" for i in (1, 2, 3) for s in (1, 2)]
    head = ",".join(("gold_label", "Sentence1", "Sentence2", *marks))
    rows = [
        'neutral,a b,c,"0,1",{},1,0,{},0',
        "neutral,a,b,0,{},,,{},0",
        "-,a,b,0,0,0,0,0,0",
        ",a,b,0,0,0,0,0,0",
        "neutral,,b,0,0,0,0,0,0",
        "neutral,a,,0,0,0,0,0,0",
    ]
    path.write_text("\n".join((head, *rows)) + "\n")
    first, second = benchmarks.read_esnli(path)
    assert (first["premise"], first["hypothesis"], first["label"]) == (
        "a b",
        "c",
        "neutral",
    )

    def read(row):
        return [tuple(note.values()) for note in row["annotations"]]

    assert read(first) == [([0, 1], []), ([1], [0]), ([], [0])]
    assert read(second) == [([0], []), ([], [0])]


def test_a_review_is_of_rows_of_one_text_and_maps_of_its_length(tmp_path):
    path = tmp_path / "ham_part3.csv"

    def page(*words):
        spans = (f'<SPAN class="x {"active" * mark}">{w}</SPAN>' for w, mark in words)
        return "".join(spans).replace('"', '""')

    texts = [
        ("one", "1.0", page(("good", 1), ("food", 0))),
        ("two", "0", page(("bad", 1))),
        ("one", "1.0", page(("good", 1), ("food", 1))),
        ("one", "1.0", page(("good", 1), ("food", 1), ("here", 1))),
        ("one", "1.0", page(("good", 1))),
        # Without a text of its own, a review is known by its words.
        ("", "1", page(("nice", 1), ("café", 0))),
        ("", "0", page(("poor", 1))),
        ("", "1", page(("nice", 1), ("café", 1))),
        # A page without words is no review.
        ("three", "1", "<p>good</p>"),
    ]
    lines = [f'{text},{label},"{html}"' for text, label, html in texts]
    head = "Input.text,Input.label,Answer.html_output"
    # Some pages are of another encoding.
    path.write_bytes(("\n".join((head, *lines)) + "\n").encode("latin-1"))
    one, two, *unnamed = benchmarks.read_yelphat(path)
    assert (one["tokens"], one["label"], one["n_hams"]) == (["good", "food"], 1, 2)
    assert one["human_attention"] == [2, 1] and one["hams"] == [[1, 0], [1, 1]]
    assert (two["tokens"], two["label"], two["human_attention"]) == (["bad"], 0, [1])
    found = [(row["tokens"], row["label"], row["human_attention"]) for row in unnamed]
    assert found == [(["nice", "caf\ufffd"], 1, [2, 1]), (["poor"], 0, [1])]


@pytest.mark.parametrize("copied", [False, True])
def test_the_reviews_outside_of_the_test_sets_are_divided_by_the_seed(
    monkeypatch, tmp_path, copied
):
    def rows(split, count):
        made = []
        for i in range(count):
            given = {"tokens": [split, str(i)], "label": 0, "n_hams": 1}
            made.append(given | {"human_attention": [1, 0]})
        return made

    sizes = {"train": 100, "test_yelp50": 2, "test_yelp100": 3, "test_yelp200": 4}
    home = {split: rows(split, count) for split, count in sizes.items()}
    known = benchmarks.BENCHMARKS["yelphat"]
    if copied:
        for split, of_split in home.items():
            with gzip.open(tmp_path / f"{split}.jsonl.gz", "wt") as file:
                file.writelines(json.dumps(row) + "\n" for row in of_split)
    monkeypatch.setattr(benchmarks, "find_copy", lambda _: tmp_path if copied else None)
    monkeypatch.setitem(
        benchmarks.BENCHMARKS, "yelphat", known._replace(home=lambda: home)
    )
    found = benchmarks.open_benchmark("yelphat", 5)
    kind = "ANISOSCOPE_DATA" if copied else "public home"
    assert found.source == {"kind": kind, "split_seed": 5}
    assert {split: len(examples) for split, examples in found.splits.items()} == {
        "train": 70,
        "validation": 30,
        "test": 9,
        "test_yelp50": 2,
        "test_yelp100": 3,
        "test_yelp200": 4,
    }
    parts = [found.splits[split] for split in ("train", "validation")]
    words = {example.words for part in parts for example in part}
    assert len(words) == 100 and {word for word, _ in words} == {"train"}
    tests = [found.splits[split] for split in list(sizes)[1:]]
    assert found.splits["test"] == tests[0] + tests[1] + tests[2]
    again = benchmarks.open_benchmark("yelphat", 5).splits["train"]
    other = benchmarks.open_benchmark("yelphat", 6).splits["train"]
    assert again == parts[0] != other
    assert (found.labels, found.tokenised) == (("negative", "positive"), False)


def test_highlights_that_are_of_no_use_are_counted(monkeypatch):
    row = {"premise": "a", "hypothesis": "b", "label": "neutral"}

    def note(*places):
        return [{"premise_highlight": list(places), "hypothesis_highlight": []}]

    home = {
        "train": [row],
        "validation": [row | {"annotations": note(0)}] * 3,
        "test": [row | {"annotations": note(0)}, row | {"annotations": note(1)}],
    }
    monkeypatch.setattr(benchmarks, "find_copy", lambda _: None)
    known = benchmarks.BENCHMARKS["esnli"]
    monkeypatch.setitem(
        benchmarks.BENCHMARKS, "esnli", known._replace(home=lambda: home)
    )
    found = benchmarks.open_benchmark("esnli", 0)
    assert found.source == {"kind": "public home", "unusable_highlights": 1}
    assert found.labels == ("neutral", "entailment", "contradiction")


def test_a_post_needs_two_of_three_annotators_and_maps_as_long_as_itself():
    def post(labels, maps):
        notes = [{"label": label} for label in labels]
        return {"post_tokens": ["a", "b"], "annotators": notes, "rationales": maps}

    every = {
        "1": post(["normal", "offensive", "offensive"], [[1, 0], [1], [0, 1, 1]]),
        "2": post(["normal", "offensive", "hatespeech"], []),
        "3": post(["normal"] * 3, []),
    }
    found = benchmarks.convert_hatexplain(
        every, {"train": ["1", "2"], "val": ["2"], "test": ["3", "1"]}
    )
    first = {"tokens": ["a", "b"], "label": "offensive", "rationales": [[1, 0], [0, 1]]}
    last = {"tokens": ["a", "b"], "label": "normal", "rationales": []}
    assert found == {"train": [first], "validation": [], "test": [last, first]}
