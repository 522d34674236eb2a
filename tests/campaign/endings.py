"""Ends of a process that nobody sees coming: a signal to itself at its n-th write below a folder, or after a time."""

import itertools
import os
import sys
import threading

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
WRITING = os.O_WRONLY | os.O_RDWR


def setup(told: dict[str, object]) -> str:
    """What a program runs first so that it ends so: `{"folder", "number"}` with `"write": n`, or `"after": seconds`;
    with `"count"`, a file that gets a byte for each write, nothing ends it.
    """
    return f"from campaign.endings import arm; arm({told!r})" if told else ""


def arm(told):
    """End this process as is told."""
    if "after" in told:
        timer = threading.Timer(told["after"], os.kill, (os.getpid(), told["number"]))
        timer.daemon = True
        timer.start()
        return
    writes = itertools.count(1)
    counted = (
        os.open(told["count"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if "count" in told
        else -1
    )

    def look(event, given):
        if event == "open":
            _, mode, flags = given
            ours = bool(set(mode or "") & set("wax+")) or bool((flags or 0) & WRITING)
        else:
            ours = event in CHANGES
        if (
            not ours
            or not isinstance(given[0], str | os.PathLike)
            or not str(given[0]).startswith(told["folder"])
        ):
            return
        number = next(writes)
        if counted >= 0:
            os.write(counted, b".")
        elif number == told["write"]:
            os.kill(os.getpid(), told["number"])

    sys.addaudithook(look)
