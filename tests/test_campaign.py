"""The campaign can fail: its parts in miniature, sound and with a mistake put in; what fails is kept; its page."""

import random

import pytest
from campaign import __main__ as campaign, inputs, numbers
from campaign.cases import Found, run

from anisoscope.capture import rows


def test_numbers_in_miniature(tmp_path):
    found = run("numbers", 1, tmp_path, most=9)
    assert found.sound and sum(found.cases.values()) == 9, found.told
    assert not list((tmp_path / "numbers").iterdir()), "what passed leaves nothing"


@pytest.mark.parametrize("kind", ["vectors", "models", "attention"])
def test_a_wrong_number_is_seen_and_kept(tmp_path, monkeypatch, kind):
    """One part in 10,000 is enough, in any kind of case."""
    check = {"vectors": "check", "models": "check", "attention": "check_attention"}[
        kind
    ]
    sound = getattr(numbers, check)

    def off(got, wanted, *rest):
        sound(got, {name: value * 1.0001 for name, value in wanted.items()}, *rest)

    def off_attention(family, dtype, *rest):
        monkeypatch.setattr(
            numbers.torch.special,
            "xlogy",
            lambda p, q: 1.001 * p * q.clamp(min=1e-300).log(),
        )
        sound(family, dtype, *rest)

    monkeypatch.setattr(numbers, check, off_attention if kind == "attention" else off)
    found = run("numbers", 1, tmp_path, most=9)
    assert found.failures.get(kind), found
    kept = [path.read_text() for path in tmp_path.rglob("case.txt")]
    assert len(kept) == sum(found.failures.values()) and all(
        "Traceback" in text for text in kept
    )


@pytest.mark.parametrize("kind", ["lengths", "matrix"])
def test_a_causal_block_one_row_off_is_seen(tmp_path, monkeypatch, kind):
    """Of the cases whose lengths are unequal; none of them had such before."""
    wall = rows._Walk._causal_penalty

    def off(self, sequences, heads, queries, keys):
        return wall(
            self, sequences, heads, slice(queries.start + 1, queries.stop + 1), keys
        )

    monkeypatch.setattr(rows._Walk, "_causal_penalty", off)
    found = run("numbers", 1, tmp_path, most=25)
    assert found.failures.get(kind), found


@pytest.mark.parametrize(
    "kind", [k for k in inputs.FEWEST if k not in ("runs", "terminal", "pipe")]
)
def test_inputs_in_miniature(tmp_path, kind):
    check = getattr(inputs, f"check_{kind.replace(' ', '_')}")
    for seed in range(12):
        own = tmp_path / str(seed)
        own.mkdir()
        check(random.Random(seed), own)


def test_the_page_keeps_the_last_two_tables(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{campaign.BEGIN}{campaign.END}after\n")
    monkeypatch.setattr(campaign, "PAGE", page)
    for seed in (1, 2, 3, 2):
        campaign.write(
            [Found("kills", seed, cases={"measure": 1200}, failures={"measure": seed})],
            seed,
            "abc",
            12,
        )
    text = page.read_text()
    assert [line for line in text.splitlines() if line.startswith("### ")] == [
        f"### Seed {seed}, commit abc, 12 minutes" for seed in (2, 3)
    ]
    assert (
        "| kills | measure | 1,200 | 2 |" in text
        and "| **all** | | **1,200** | **3** |" in text
    )
    assert text.startswith("before\n\n<!--") and text.endswith("-->\nafter\n")
