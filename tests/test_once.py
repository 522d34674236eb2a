"""What several processes ask for is made once: claimed, made, kept, waited for; and what tells two runs apart."""

import time
from threading import Event, Thread

import pandas as pd
import pytest

from anisoscope.store import (
    Busy,
    list_changed_fields,
    make_once,
    make_records_once,
    visit_busy_last,
)


def test_what_is_there_is_not_made_again(tmp_path):
    key, made = tmp_path / "a.txt", []

    def make():
        made.append(1)
        key.write_text("a")

    for _ in range(2):
        make_once(key, make)
    assert made == [1]
    folder = tmp_path / "folder"
    for name in ("begun", "whole", "never asked"):
        make_once(
            folder,
            lambda name=name: (folder.mkdir(exist_ok=True), (folder / name).touch()),
            marker="whole",
        )
    assert sorted(path.name for path in folder.iterdir()) == ["begun", "whole"]


def test_a_table_is_kept(tmp_path):
    frame = pd.DataFrame({"value": [1.0]})
    for give in (lambda: frame, lambda: pytest.fail("made again")):
        pd.testing.assert_frame_equal(
            make_records_once(tmp_path / "new" / "a.parquet", give), frame
        )


def test_an_error_leaves_nothing_behind_and_the_claim_is_let_go(tmp_path):
    key = tmp_path / "a.txt"
    with pytest.raises(KeyboardInterrupt):
        make_once(key, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    make_once(key, lambda: key.write_text("a"), wait=False)
    assert key.read_text() == "a"


def test_what_another_process_makes_is_waited_for_or_busy(tmp_path, held):
    key = tmp_path / "folder"
    with held(key, seconds=1.5):
        started = time.monotonic()
        with pytest.raises(Busy):
            make_once(
                key, lambda: pytest.fail("two at once"), marker="whole", wait=False
            )
        assert time.monotonic() - started < 0.5
        make_once(key, key.mkdir, marker="whole")
        assert time.monotonic() - started > 0.5


def test_who_has_waited_for_another_makes_nothing(tmp_path):
    key, begun, made = tmp_path / "a.txt", Event(), []

    def slowly():
        begun.set()
        time.sleep(0.3)
        key.write_text("a")

    first = Thread(target=make_once, args=(key, slowly))
    first.start()
    begun.wait()
    make_once(key, lambda: made.append("again"))
    first.join()
    assert not made


def test_a_killed_maker_leaves_no_claim(tmp_path, held):
    key = tmp_path / "a.txt"
    with held(key) as other:
        other.kill()
        other.wait()
        make_once(key, lambda: key.write_text("a"), wait=False)
    assert key.exists()


def test_names_with_dots_are_claimed_apart(tmp_path, held):
    """The lock was named by `with_suffix`: `model-1.5` and `model-1.6` shared one, and waited for each other."""
    with held(tmp_path / "model-1.5"):
        make_once(tmp_path / "model-1.6", lambda: None, wait=False)


def test_what_others_have_in_hand_comes_last():
    order = []

    def attempt(item, wait):
        order.append((item, wait))
        if item == "held" and not wait:
            raise Busy
        return item.upper()

    assert list(visit_busy_last(["held", "a", "b"], attempt)) == ["A", "B", "HELD"]
    assert order == [("held", False), ("a", False), ("b", False), ("held", True)]


def test_what_only_one_side_has_differs_too():
    ours, theirs = {"a": 1, "b": {"c": 1}, "e": 5}, {"b": {"c": 1, "d": 2}, "e": 5}
    assert list_changed_fields(ours, theirs) == ["a", "b.d"]
