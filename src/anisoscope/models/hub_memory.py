"""Remember the hub's answers: each question is asked once within a piece of work; commits are remembered beyond it."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

Answer = TypeVar("Answer")
REFUSED = (401, 403, 404)
"""Answers of the hub by which there is no such thing, or not for this user."""
TIMEOUT = 10.0
_ANSWERS: list[dict[Hashable, Any]] = []


@contextmanager
def ask_once() -> Iterator[None]:
    """Ask the hub each question only once inside a `with` block, in every thread: a name means one commit
    throughout.
    """
    _ANSWERS.append(_ANSWERS[-1] if _ANSWERS else {})
    try:
        yield
    finally:
        _ANSWERS.pop()


def get_answer(question: Hashable, ask: Callable[[], Answer]) -> Answer:
    """Return what `ask` gives; inside `ask_once` what it gave before, refusals included.

    Other failures are not kept.
    """
    known: dict[Hashable, Any] = _ANSWERS[-1] if _ANSWERS else {}
    if question not in known:
        try:
            known[question] = ask()
        except Exception as error:
            if getattr(getattr(error, "response", None), "status_code", 0) not in REFUSED:
                raise
            known[question] = error
    if isinstance(known[question], Exception):
        raise known[question]
    return known[question]  # type: ignore[no-any-return]


def with_token_fallback(question: Callable[[bool | None], Answer]) -> tuple[Answer, bool | None]:
    """Answer a question with a token, and say which: a token that the hub refuses is left out in a second try."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return question(None), None
    except HfHubHTTPError as error:
        if error.response.status_code not in (401, 403) or get_token() is None:
            raise
        try:
            return question(False), False
        except HfHubHTTPError:
            raise error from None


def get_timeout() -> float:
    """Return the seconds to wait for the hub's answer; more if HF_HUB_ETAG_TIMEOUT says so."""
    from huggingface_hub import constants

    return max(TIMEOUT, float(constants.HF_HUB_ETAG_TIMEOUT))


def remember(kind: str, name: str, revision: str | None, commit: str) -> None:
    """Note the commit that a name stood for, beside the hub's cache. A cache that is read-only serves as well."""
    path = _note(kind, name, revision)
    with suppress(OSError):
        if recall_commit(kind, name, revision) != commit:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(commit, "utf-8")


def recall_commit(kind: str, name: str, revision: str | None) -> str | None:
    """Return the commit that a name meant when the hub was last asked; None if it never was."""
    with suppress(OSError, ValueError):
        return _note(kind, name, revision).read_text("utf-8")
    return None


def _note(kind: str, name: str, revision: str | None) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HOME, "anisoscope", "commits", f"{kind}--{name}@{revision or 'main'}".replace("/", "--"))
