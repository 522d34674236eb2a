"""Tables that the program prints, and the forms of its answers: rows by hand, in which every number is another one."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from anisoscope.cli import atlas, extreme_tables, printed_tables, view
from anisoscope.errors import UsageError
from anisoscope.runs.finding import Finding
from anisoscope.store import as_records

NAN = math.nan


def records(*rows):
    place = {"stack": "encoder", "kind": "self", "site": "hidden", "layer": 1}
    place |= {"token_policy": "all", "value": 0.5, "low": 0.4, "high": 0.6}
    place |= {"n_units": 9, "n_vectors": 70}
    return as_records(pd.DataFrame([place | given for given in rows]))


def table(head, *rows, of=None):
    frame = pd.DataFrame() if of is None else of
    return view.Table(tuple(head), [list(row) for row in rows], frame)


# ---- hidden states


def of_layers():
    rows = []
    for layer, site, a in ((0, "hidden", 0.1), (1, "hidden", 0.3), (1, "final", 0.5)):
        place = {"layer": layer, "site": site}
        ends = {"value": a, "low": a - 0.01, "high": a + 0.02}
        rows.append(place | ends | {"metric": "mean_cosine"})
        law = {"metric": "mean_cosine.isotropic_q95", "value": 0.2}
        rows.append(place | law | {"low": NAN, "high": NAN})
        share = {"metric": "drift.share", "value": 0.126 + a}
        rows.append(place | share | {"low": 0.1 + a, "high": 0.2 + a})
    rank = {"metric": "spectrum.effective_rank", "value": 7.125, "low": 6, "high": 8.25}
    rows.append({"layer": 1} | rank)
    other = {"metric": "mean_cosine", "value": 0.9, "token_policy": "content"}
    return records(*rows, other)


def test_hidden_states_are_a_row_a_layer_with_verdict_and_other_metrics():
    short = printed_tables.tabulate_layers(of_layers())
    assert short.head == (
        "layer",
        "A",
        "verdict",
        "drift share",
        "top-3 share",
        "effective rank",
    )
    assert short.rows == [
        ["0", ".100 [.090, .120]", "isotropic", ".23", "–", "–"],
        ["1", ".300 [.290, .320]", "anisotropic", ".43", "–", "7.12"],
        ["final", ".500 [.490, .520]", "anisotropic", ".63", "–", "–"],
    ]
    wide = printed_tables.tabulate_layers(of_layers(), wide=True)
    # a metric that one layer has gets a column, and one that none has gets none
    assert wide.head == (
        "layer",
        "verdict",
        "A",
        "q95",
        "drift share",
        "effective rank",
    )
    assert wide.rows[1] == [
        "1",
        "anisotropic",
        ".300 [.290, .320]",
        ".200",
        ".426 [.400, .500]",
        "7.125 [6.000, 8.250]",
    ]
    assert wide.rows[2][-1] == "–" and wide.rows[0][1] == "isotropic"


def test_every_column_of_hidden_states_has_the_heading_of_its_metric():
    headings = {
        "mean_cosine": "A",
        "mean_cosine.between": "A between",
        "mean_cosine.isotropic_q95": "q95",
        "spectrum.cosine_square": "d·E[cos²]",
        "calibrated.pairs_above_q95": "pairs > q95",
        "calibrated.centred": "A centred",
        "drift.share": "drift share",
        "intra_sequence": "within seq.",
        "mean_cosine.top_share": "top-3 share",
        "spectrum.effective_rank": "effective rank",
    }
    values = {metric: n / 100 for n, metric in enumerate(headings, 10)}
    made = records(
        *(
            {"metric": metric, "value": value, "low": NAN, "high": NAN}
            | ({"component": "3"} if metric.endswith("top_share") else {})
            for metric, value in reversed(values.items())
        )
    )
    wide = printed_tables.tabulate_layers(made, wide=True)
    assert wide.head == ("layer", "verdict", *headings.values())
    shown = [f".{n}0" for n in range(10, 20)]
    assert wide.rows[0][2:] == shown


# ---- attention


def of_heads(metric, values, *, site="attention", **keys):
    return [
        {"metric": metric, "head": head, "value": value, "site": site} | keys
        for head, value in enumerate(values)
    ]


def test_attention_has_the_interval_of_its_entropy_and_of_all_if_it_is_wide():
    made = records(
        *of_heads("attention.entropy_normalised", [0.2, 0.4], low=0.1, high=0.5),
        *of_heads("attention.first_mass", [0.3, 0.6], low=0.25, high=0.7),
        *of_heads(
            "query_key.cosine", [-0.5, 0.1], site="query.raw", low=-0.6, high=0.2
        ),
    )
    heads = printed_tables.tabulate_attention(made, heads=True)
    assert heads.head == ("layer", "head", "entropy", "first token", "cos q,k", "kind")
    assert [line[:5] for line in heads.rows] == [
        ["1", "0", ".200 [.100, .500]", ".300", "−.500"],
        ["1", "1", ".400 [.100, .500]", ".600", ".100"],
    ]
    wide = printed_tables.tabulate_attention(made, heads=True, wide=True)
    assert wide.rows[0][2:5] == [
        ".200 [.100, .500]",
        ".300 [.250, .700]",
        "−.500 [−.600, .200]",
    ]
    layers = printed_tables.tabulate_attention(made)
    assert layers.head == ("layer", "entropy", "first token", "|cos q,k|", "kinds")
    # the sizes of cosines, whose signs would cancel
    assert layers.rows[0][:4] == ["1", ".300", ".450", ".300"]
    assert len(layers.records) == 3 and layers.records["head"].isna().all()
    # with the values without each group of units, means have intervals
    draw = np.random.default_rng(0)
    left_out = made["value"].to_numpy()[:, None] + draw.normal(size=(6, 8)) / 100
    found = printed_tables.tabulate_attention(made, left_out)
    assert found.rows[0][1].startswith(".300 [") and found.rows[0][2] == ".450"


def test_every_column_of_attention_has_the_heading_of_its_metric():
    headings = {
        "attention.entropy_normalised": "entropy",
        "attention.first_mass": "first token",
        "attention.row_max": "largest weight",
        "attention.row_similarity": "rows alike",
        "query_key.cosine": "|cos q,k|",
        "centred_attention.query_rise": "centred rise",
        "score_terms.mean_query_share": "drift share",
    }
    made = records(
        *(
            row
            for n, metric in reversed([*enumerate(headings, 1)])
            for row in of_heads(
                metric,
                [n / 10],
                low=NAN,
                high=NAN,
                **({"site": "query.raw"} if metric.startswith("query_key") else {}),
            )
        )
    )
    found = printed_tables.tabulate_attention(made, wide=True)
    assert found.head == ("layer", *headings.values(), "kinds")
    assert found.rows[0][1:-1] == [f".{n}00" for n in range(1, 8)]


def test_other_metrics_of_heads_are_means_of_their_own_rows():
    made = records(
        {"metric": "mean_cosine", "value": 0.9},
        *of_heads("attention.entropy_normalised", [0.2, 0.4]),
        *of_heads("sinks.rate", [0.2, 0.4], component=".3"),
        *of_heads("sinks.strongest", [0.2, 0.4]),
        *of_heads("logits.largest", [0.2, 0.4]),
        *of_heads("parts", [0.2, 0.4], component="x"),
        *of_heads("norm", [1.0, 2.0], site="query.raw"),
        *of_heads("norm", [3.0, 5.0], site="query.rotated"),
        *of_heads("norm", [7.0, 9.0], site="query.raw", layer=2),
    )
    found = printed_tables.tabulate_other_head_metrics(made)
    assert found.head == ("layer", "norm", "norm (rotated)")
    assert found.rows == [["1", "1.500", "4.000"], ["2", "8.000", ""]]
    assert printed_tables.tabulate_other_head_metrics(made[:7]) is None
    # intervals come from the replicates of these very rows
    left_out = np.full((len(made), 4), NAN)
    for row, value in zip(range(11, 17), made["value"][11:], strict=True):
        left_out[row] = value + np.array([-0.1, 0.1, -0.1, 0.1])
    found = printed_tables.tabulate_other_head_metrics(made, left_out)
    # jackknife: √(3/4 · 4 · .1²) = .1732 around the mean, times t(3) = 3.182
    assert found.rows[0][1] == "1.500 [.949, 2.051]"
    # a selection keeps no numbers of rows
    part = made[made["metric"].ne("parts")]
    kept = left_out[made["metric"].ne("parts").to_numpy()]
    assert printed_tables.tabulate_other_head_metrics(part, kept).rows == found.rows
    both = records(
        *of_heads("norm", [1.0], site="key"),
        *of_heads("norm", [2.0], site="key", stack="decoder"),
    )
    found = printed_tables.tabulate_other_head_metrics(both)
    assert found.head == ("stack", "layer", "norm")
    assert found.rows == [["encoder", "1", "1.000"], ["decoder", "1", "2.000"]]


def test_every_column_of_classes_has_the_heading_of_its_metric():
    headings = {
        "class_direction.auc": "AUC",
        "class_direction.nearest": "nearest is own",
        "class_direction.dimensions": "dimensions",
        "mean_cosine": "A",
        "intra_sequence": "within utterance",
        "cls_entropy": "H of [CLS]",
    }
    made = records(
        *(
            {"metric": metric, "value": n / 10, "low": NAN, "high": NAN}
            for n, metric in reversed([*enumerate(headings, 1)])
        )
    )
    (found,) = printed_tables.tabulate_classes(made)
    assert found.head == ("layer", *headings.values())
    assert found.rows == [["1", ".100", ".200", ".300", ".400", ".500", ".600"]]


def test_classes_are_of_hidden_layers_and_count_examples():
    made = records(
        {"metric": "class_direction.auc", "site": "final", "value": 0.2, "layer": 2},
        {"metric": "class_direction.auc", "value": 0.9, "layer": 2},
        {"metric": "accuracy", "layer": None, "n_units": 1234, "n_vectors": 5678},
    )
    first, whole = printed_tables.tabulate_classes(made)
    assert first.rows == [["2", ".900 [.400, .600]"]]
    assert whole.rows == [["accuracy", ".500 [.400, .600]", "1,234"]]
    assert whole.head == ("of the classifier", "", "examples")


def test_a_metric_is_described_by_the_first_paragraph_of_its_text(monkeypatch):
    other = SimpleNamespace(documentation="First line\nof two.\n\nMore of it.")
    monkeypatch.setattr(
        printed_tables,
        "list_added",
        lambda kind: {"own": other} if kind == "metrics" else {},
    )
    rows = dict(printed_tables._describe_metrics())
    assert rows["own"] == "First line of two."
    assert not any("\n" in text for text in rows.values())


# ---- extremes


def of_extremes():
    rows = []
    for layer, site, n in ((1, "hidden", 0), (1, "final", 10)):
        place = {"layer": layer, "site": site, "component": "1"}
        for metric, value in (
            ("largest", 20.5),
            ("largest_dimension", 3),
            ("largest_position", 5),
            ("largest_token", 7),
        ):
            rows.append(place | {"metric": f"massive.{metric}", "value": value + n})
        rows.append(
            place | {"metric": "massive.rate", "component": None, "value": 0.25}
        )
    return rows


def of_sinks():
    rows = []
    for kind, more in (("self", 0.0), ("cross", 0.05)):
        for metric, component, values in (
            ("sinks.rate", ".3", [0.5, 0.7]),
            ("sinks.mass", "last", [0.1, 0.3]),
            ("sinks.value_norm", None, [2.0, 4.0]),
            ("logits.smallest", None, [-3.125, -1.0]),
            ("logits.largest", None, [4.0, 6.25]),
        ):
            shifted = [value + more for value in values]
            keys = {"component": component, "kind": kind, "low": 0.3, "high": 0.8}
            rows += of_heads(metric, shifted, **keys)
    return rows


def test_extremes_are_a_table_of_layers_and_one_of_heads():
    made = records(*of_extremes(), *of_sinks())
    words = {"7": "the"}
    first, second = extreme_tables.tabulate_extremes(made, None, words)
    assert first.head == ("layer", "largest |x|", "dim.", "token (position)", "massive")
    assert first.rows == [
        ["1", "20.5", "3", "the (5)", ".250"],
        ["final", "30.5", "13", "(15)", ".250"],
    ]
    assert first.records["head"].isna().all() and len(first.records) == 10
    assert second.head == ("kind", "layer", "sink rate", "value norm", "logits")
    assert second.rows == [
        ["cross", "1", ".650", "3.050", "−3.1…6.3"],
        ["self", "1", ".600", "3.000", "−3.1…6.2"],
    ]
    assert "label" not in second.records
    _, heads = extreme_tables.tabulate_extremes(made, None, words, heads=True)
    assert heads.head[:3] == ("kind", "layer", "head")
    rate = ".700 [.300, .800]"
    assert heads.rows[3] == ["self", "1", "1", rate, "4.000", "−1.0…6.2"]
    assert len(heads.rows) == 4
    _, wide = extreme_tables.tabulate_extremes(made, None, words, heads=True, wide=True)
    assert wide.head[3:] == ("sink rate", "on last", "value norm", "logits")
    ends = "[.300, .800]"
    assert wide.rows[3][3:] == [rate, f".300 {ends}", f"4.000 {ends}", "−1.0…6.2"]
    alone = [row for row in of_sinks() if row["kind"] == "self"]
    (sinks,) = extreme_tables.tabulate_extremes(records(*alone), None, {})
    assert sinks.head[0] == "layer"
    assert extreme_tables.tabulate_extremes(made[:0], None, {}) == []
    two = [row | {"stack": stack} for stack in "ba" for row in of_extremes()]
    (of_stacks,) = extreme_tables.tabulate_extremes(records(*two), None, {})
    assert of_stacks.head[:2] == ("stack", "layer")
    assert [line[:2] for line in of_stacks.rows] == [
        ["a", "1"],
        ["a", "final"],
        ["b", "1"],
        ["b", "final"],
    ]


def test_every_column_of_sinks_and_of_activations_has_the_heading_of_its_metric():
    of_sinks = {
        ("sinks.rate", ".3"): "sink rate",
        ("sinks.first_rate", ".3"): "rate at first",
        ("sinks.strongest", None): "strongest",
        ("sinks.mass", "first"): "mass on first",
        ("sinks.mass", "last"): "on last",
        ("sinks.mass", "special"): "on special",
        ("sinks.mass", "punctuation"): "on punct.",
        ("sinks.value_norm", None): "value norm",
        ("sinks.query_norm", None): "longest q",
        ("sinks.key_norm", None): "longest k",
    }
    keys = {"low": NAN, "high": NAN}
    rows = []
    for n, (metric, component) in enumerate(of_sinks, 10):
        rows += of_heads(metric, [n / 100], component=component, **keys)
    (wide,) = extreme_tables.tabulate_extremes(records(*rows), None, {}, wide=True)
    assert wide.head == ("layer", *of_sinks.values())
    assert wide.rows == [["1", *(f".{n}0" for n in range(10, 20))]]
    (short,) = extreme_tables.tabulate_extremes(records(*rows), None, {})
    assert short.head == (
        *("layer", "sink rate", "rate at first"),
        *("mass on first", "on punct.", "value norm"),
    )
    of_activations = {
        ("massive.largest", "1"): ("largest |x|", 20.5, "20.5"),
        ("massive.largest_dimension", "1"): ("dim.", 3, "3"),
        ("massive.largest_position", "1"): ("token (position)", 5, "(5)"),
        ("massive.over_median", None): ("medians", 0.25, ".250"),
        ("massive.rate", None): ("massive", 0.5, ".500"),
        ("kurtosis.largest", None): ("kurtosis", 0.75, ".750"),
        ("kurtosis.dimension", None): ("dim.", 4, "4"),
        ("matrix_entropy", None): ("matrix entropy", 0.125, ".125"),
    }
    rows = [
        {"metric": metric, "component": component, "value": value}
        for (metric, component), (_, value, _) in of_activations.items()
    ]
    (found,) = extreme_tables.tabulate_extremes(records(*reversed(rows)), None, {})
    assert found.head == ("layer", *(label for label, *_ in of_activations.values()))
    assert found.rows == [["1", *(cell for *_, cell in of_activations.values())]]


# ---- an atlas


def test_networks_of_one_stack_have_no_column_for_it():
    row = {"network": "x", "stack": "encoder", "weakest": 0.1, "weakest_layer": 1}
    row |= {"strongest": 0.6, "strongest_low": 0.5, "strongest_high": 0.7}
    row |= {"strongest_layer": 7, "last": 0.4, "q95": 0.05, "cause": "the mean"}
    row |= {"verdict": "anisotropic", "sink_heads": 3.0, "heads": 12.0}
    made = atlas.tabulate_atlas(pd.DataFrame([row, row | {"network": "y"}]))
    cells = [".100 @1", ".600 [.500, .700] @7", ".400", ".050", "the mean", "3 of 12"]
    head = ("weakest", "strongest", "last", "q95", "carried by", "sinks")
    assert made.head == ("network", *head)
    assert made.rows == [["x", *cells], ["y", *cells]]
    two = atlas.tabulate_atlas(pd.DataFrame([row, row | {"stack": "decoder"}]))
    assert two.head == ("network", "stack", *head)
    assert [line[:2] for line in two.rows] == [["x", "encoder"], ["x", "decoder"]]
    judged = atlas.tabulate_atlas(
        pd.DataFrame([row | {"cause": "", "verdict": v} for v in ("isotropic", "")])
    )
    assert [line[-2] for line in judged.rows] == ["–", ""]
    left = SimpleNamespace(left_out={"a": "why", "b": "gone"})
    assert atlas._describe_left_out(left) == ["left out: a: why", "left out: b: gone"]


# ---- forms of an answer


FRAME = pd.DataFrame({"n": [1 / 3, -math.inf], "s": ["a", None]})
OTHER = pd.DataFrame({"n": [2.0]})
FOUND = [Finding("rule", "one"), Finding("rule", "two")]


def shown(capsys, form, **how):
    tables = [
        table(("layer", "A"), ("1", ".3"), of=FRAME),
        table(("empty",)),
        table(("x",), ("|",), of=OTHER),
    ]
    view.show(tables, view.Format(format=form), FOUND, ["note"], **how)
    given = capsys.readouterr()
    assert given.err == ""
    return given.out


def test_json_has_all_fields_and_the_records_of_every_table(capsys):
    answer = json.loads(shown(capsys, "json", more={"run": "r"}))
    assert answer["schema"] == view.SCHEMA == 1 and answer["run"] == "r"
    assert answer["notes"] == ["note"]
    assert [found["text"] for found in answer["findings"]] == ["one", "two"]
    assert answer["records"] == [
        {"n": 1 / 3, "s": "a"},
        {"n": None, "s": None},
        {"n": 2.0},
    ]


def test_csv_is_one_file_of_all_records(capsys):
    lines = shown(capsys, "csv").splitlines()
    assert lines == ["n,s", "0.3333333333333333,a", "-inf,", "2.0,"]


def test_markdown_has_tables_and_a_list_of_what_was_found(capsys):
    assert shown(capsys, "markdown") == (
        "| layer | A |\n| --- | --- |\n| 1 | .3 |\n\n| x |\n| --- |\n| \\| |\n\n- one\n- two\n"
    )


def test_text_has_tables_a_blank_line_and_what_was_found(capsys):
    assert shown(capsys, "table") == "layer  A\n1      .3\n\nx\n|\n\none\ntwo\n"
    view.show([table(("a",), ("b",))], view.Format())
    assert capsys.readouterr().out == "a\nb\n"
    view.show_row({"a": 1, "b": "x y"}, view.Format(format="csv"))
    assert capsys.readouterr().out == "a,b\n1,x y\n"


def test_lines_are_as_wide_as_the_stream_they_go_to(monkeypatch, capsys):
    monkeypatch.setattr(
        view, "count_columns", lambda stream: 10 if stream is view.sys.stderr else None
    )
    view.echo_wrapped("one two three", err=True, indent="  ")
    view.echo_wrapped("one two three", indent="  ")
    given = capsys.readouterr()
    assert given.err == "one two\n  three\n" and given.out == "one two three\n"
    monkeypatch.undo()
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(
        view.shutil, "get_terminal_size", lambda: SimpleNamespace(columns=33)
    )
    assert view.count_columns(terminal) == 33
    assert view.count_columns(SimpleNamespace(isatty=lambda: False)) is None


def test_intervals_go_below_their_values_at_the_width_at_which_that_fits(monkeypatch):
    rows = [(".1 [.0, .2]", "some words", "anisotropic"), (".3", "word", "isotropic")]
    made = table(("A", "other", "verdict"), *rows)

    def lines(width):
        monkeypatch.setattr(view, "count_columns", lambda _: width)
        return view._to_text(made).splitlines()

    # 11 and 10 and 11 characters, with two blanks between columns
    assert lines(36) == [
        "A            other       verdict",
        ".1 [.0, .2]  some words  anisotropic",
        ".3           word        isotropic",
    ]
    # 8 characters of an interval, 5 of the longest word, 11 of the verdict, and 4 blanks
    assert lines(8 + 2 + 5 + 2 + 11) == [
        "A         other  verdict",
        "          some",
        ".1        words  anisotropic",
        "[.0, .2]",
        ".3        word   isotropic",
    ]
    for width in (10, 20, 27, 28, 29, 35):
        shown = lines(width)
        assert max(map(len, shown)) <= width, width


def test_lists_of_names_are_refused_by_name():
    from anisoscope.cli import reading

    with pytest.raises(UsageError, match="did you mean metrics"):
        reading.list_names("metric")


def test_options_of_a_file_are_read_under_the_names_of_flags(monkeypatch, tmp_path):
    from anisoscope.cli import config

    path = tmp_path / "run.toml"
    path.write_text('batch_tokens = 5\npanel = "hidden"\n')
    asked, noted = [], []

    def read(values, **how):
        asked.append((values, how))
        return lambda *given: asked.append(given)

    monkeypatch.setattr(config, "Dict", read)
    monkeypatch.setattr(config, "note_config", noted.append)

    def argument(name, *values):
        tokens = [SimpleNamespace(value=value) for value in values]
        return SimpleNamespace(name=name, names=(name,), tokens=tokens)

    typed = [argument("--config", str(path)), argument("--panel", "attention")]
    config.apply_config("app", ("measure",), typed)
    how = {"source": str(path), "use_commands_as_keys": False}
    assert asked == [
        ({"batch-tokens": 5, "panel": "hidden"}, how),
        ("app", ("measure",), typed),
    ]
    assert noted == [
        {
            "file": str(path),
            "options": {"batch_tokens": 5, "panel": "hidden"},
            "overrides": {"panel": "attention"},
        }
    ]
    config.apply_config("app", (), typed[1:])
    assert len(noted) == 1, "without --config nothing is read"
