"""Remember the hub's answers: each question is asked once per piece of work; commits are remembered on disk."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

Answer = TypeVar("Answer")
REFUSED = (401, 403, 404)
"""Answers of the hub by which there is no such thing, or not for this user."""
TIMEOUT = 10.0
_ANSWERS: list[dict[Hashable, Any]] = []
_FAILURES: list[list[Exception]] = []


@contextmanager
def ask_once() -> Iterator[None]:
    """Within a `with` block, cache the hub's answers for all threads, so that a name always means the same commit."""
    # A block inside another shares the answers, so that both mean the same commits.
    _ANSWERS.append(_ANSWERS[-1] if _ANSWERS else {})
    try:
        yield
    finally:
        _ANSWERS.pop()


@contextmanager
def stop_asking_after_failure() -> Iterator[None]:
    """Within a `with` block, ask the hub nothing more, in any thread, once it has failed to answer a question.

    Without a network each question may take ten seconds, and a pattern can stand for thousands of names.
    """
    _FAILURES.append([])
    try:
        yield
    finally:
        _FAILURES.pop()


def get_answer(question: Hashable, ask: Callable[[], Answer]) -> Answer:
    """Return the hub's answer to a question: what `ask()` returns or, within `ask_once`, the answer cached earlier.

    question   the key under which the answer is cached

    A refusal (no such model, no access) is cached and raised again as well. Other failures are not, except within
    `stop_asking_after_failure`, where the first one is raised again for every further question.
    """
    from huggingface_hub.errors import HFValidationError

    known: dict[Hashable, Any] = _ANSWERS[-1] if _ANSWERS else {}
    failures: list[Exception] = _FAILURES[-1] if _FAILURES else []
    if question not in known:
        if failures:
            raise failures[0]
        try:
            known[question] = ask()
        except HFValidationError:  # a fault of the name, found before anybody was asked
            raise
        except Exception as error:
            if (
                getattr(getattr(error, "response", None), "status_code", 0)
                not in REFUSED
            ):
                failures.append(error)
                raise
            known[question] = error
    if isinstance(known[question], Exception):
        raise known[question]
    return known[question]  # type: ignore[no-any-return]


def with_token_fallback(
    question: Callable[[bool | None], Answer],
) -> tuple[Answer, bool | None]:
    """Ask the hub with the user's token; if it refuses the token, ask once more without it.

    question   a function that asks; its argument is the `token` of `huggingface_hub`

    Returns (the answer, the argument that worked): None for the user's token, False for no token.
    """
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
            # The first error is about the token that the user gave, which says more.
            raise error from None


def get_timeout() -> float:
    """Return how many seconds to wait for the hub: `TIMEOUT`, or HF_HUB_ETAG_TIMEOUT if that is longer."""
    from huggingface_hub import constants

    return max(TIMEOUT, float(constants.HF_HUB_ETAG_TIMEOUT))


def remember(kind: str, name: str, revision: str | None, commit: str) -> None:
    """Write down which commit a name stood for, next to the hub's cache. Ignored if the cache is read-only.

    kind   `model` or the like: what the name is of
    """
    path = _note(kind, name, revision)
    with suppress(OSError):
        if recall_commit(kind, name, revision) != commit:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(commit, "utf-8")


def recall_commit(kind: str, name: str, revision: str | None) -> str | None:
    """Return the commit that a name meant when the hub was last asked; None if it never was.

    kind   `model` or the like: what the name is of
    """
    with suppress(OSError, ValueError):
        return _note(kind, name, revision).read_text("utf-8")
    return None


def _note(kind: str, name: str, revision: str | None) -> Path:
    """Return the file that remembers which commit a name stood for.

    kind   `model` or the like: what the name is of
    """
    from huggingface_hub import constants

    return Path(
        constants.HF_HOME,
        "anisoscope",
        "commits",
        f"{kind}--{name}@{revision or 'main'}".replace("/", "--"),
    )
