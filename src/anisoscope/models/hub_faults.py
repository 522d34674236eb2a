"""Tell failures of the hub apart: what happened, and what to do about it."""

import json
import os
import re
from typing import Any, NamedTuple


class Fault(NamedTuple):
    """A failure of the hub: what happened, and the cure.

    absent   the hub says that there is no such thing
    denied   this user may not have it
    """

    got: str
    cure: str
    absent: bool = False
    denied: bool = False


def classify_fault(error: BaseException) -> Fault:
    """Return the fault behind an error of `huggingface_hub` or its HTTP library, or behind a reply that cannot be
    read.
    """
    from huggingface_hub import errors

    chain = _list_causes(error)
    # A status of the hub says more than whatever followed from it, so it is looked for in the whole chain first.
    for cause in chain:
        if isinstance(cause, errors.HfHubHTTPError):
            return _explain_status(cause)
    for cause in chain:
        if isinstance(cause, errors.FileMetadataError):
            return _explain_foreign_reply()
        if isinstance(cause, errors.OfflineModeIsEnabled):
            return Fault(
                "no network wanted: HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"
            )
        if isinstance(cause, errors.HTTPError):  # type: ignore[attr-defined]
            return _explain_no_reply(type(cause).__name__, str(cause))
    # A page of HTML, or JSON without what a hub's answer has in it.
    if isinstance(
        error,
        json.JSONDecodeError
        | UnicodeDecodeError
        | LookupError
        | TypeError
        | AttributeError,
    ):
        return _explain_foreign_reply()
    return Fault(
        f"{type(error).__name__}: {' '.join(str(error).split())[:160]}", "try again"
    )


def _list_causes(error: BaseException) -> list[BaseException]:
    """Return an error and what led to it, from the last to the first."""
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    return chain


def _explain_status(error: Any) -> Fault:
    """Return what an error reply of the hub means: by the class of the error, else by its HTTP status."""
    from huggingface_hub import errors, get_token

    status = int(error.response.status_code)
    # GatedRepoError is a kind of RepositoryNotFoundError, so it is asked for before
    # that.
    if isinstance(error, errors.GatedRepoError):
        cure = "accept its terms on its page of the hub, then `hf auth login`"
        return Fault(f"a gated repository ({status})", cure, denied=True)
    if isinstance(error, errors.DisabledRepoError):
        return Fault(
            f"a repository that the hub has disabled ({status})",
            "name another one",
            denied=True,
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return Fault(
            f"no such repository ({status})",
            "a private repository needs `hf auth login`",
            absent=True,
        )
    # The hub answers 401 for a repository that does not exist too: the class above
    # knows, so the status alone comes after it.
    if status == 401 and get_token() is None:
        return Fault(
            "an answer only for those who are logged in (401)",
            "run `hf auth login`",
            denied=True,
        )
    if status >= 500:
        return Fault(
            f"a failure of the hub itself ({status})",
            "try again later; status.huggingface.co says more",
        )
    token = "`hf auth login` with a valid token, or without one: `hf auth logout` and unset HF_TOKEN"
    rights = "give the token the right to read it, or accept the repository's terms on its page"
    seconds = re.search(r"\d+", error.response.headers.get("Retry-After", ""))
    wait = f"wait {seconds[0]} s" if seconds else "wait some minutes"
    place = "HF_ENDPOINT" if os.environ.get("HF_ENDPOINT") else "the spelling"
    by_status = {
        401: Fault("a token that the hub refuses (401)", token, denied=True),
        403: Fault("a token without the right to read it (403)", rights, denied=True),
        404: Fault("no such page (404)", f"check {place}", absent=True),
        429: Fault(
            "too many requests for the hub (429)",
            f"{wait}, or `hf auth login` for a higher limit",
        ),
    }
    other = Fault(
        f"an answer with status {status}",
        "try again, or check HF_ENDPOINT and the proxy",
    )
    return by_status.get(status, other)


def _explain_foreign_reply() -> Fault:
    """Return the fault of a reply that is not a hub's: most often the login page of a network."""
    cure = "a network that asks for a login answers so: log in to it with a browser"
    endpoint = os.environ.get("HF_ENDPOINT")
    cure += f"; or HF_ENDPOINT ({endpoint}) is no hub" if endpoint else ""
    return Fault("a page that is not the hub's", cure)


def _explain_no_reply(kind: str, text: str) -> Fault:
    """Return the fault of a request without a reply, by the kind and text of the library's error."""
    if "CERTIFICATE" in text.upper():
        cure = "log in to the network with a browser, or set SSL_CERT_FILE to the proxy's certificate"
        return Fault("a certificate that is not the hub's", cure)
    if "Proxy" in kind:
        return Fault(
            f"a proxy that fails ({text[:80]})", "check HTTPS_PROXY and HTTP_PROXY"
        )
    if "Timeout" in kind:
        return Fault(
            "no network, or one too slow (no answer in time)", "connect to the network"
        )
    if "Protocol" in kind or "ReadError" in kind:
        return Fault(f"a connection that broke off ({kind})", "try again")
    return Fault("no network", "connect to the network")
