"""A page as a browser shows it: Chromium without a window, driven over pipes by its DevTools protocol, with no package.

    with Browser(width=1400) as browser:
        browser.open(path)
        assert browser.evaluate("document.title")

`find_chromium` says whether there is one; tests that need it are skipped by name without it.
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60.0
"""How long an answer may take on a machine with other work."""
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--no-sandbox",
    "--no-first-run",
    "--hide-scrollbars",
)
LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str | None:
    """The path of a Chromium of this machine; None without one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page."""

    def __init__(
        self, width: int = 1400, height: int = 900, *, dark: bool = False
    ) -> None:
        self.size, self.dark = (width, height), dark
        self.errors: list[str] = []
        self.blocked: list[str] = []
        self._asked: dict[str, str] = {}
        self._count = 0
        self._rest = b""

    @property
    def requests(self) -> list[str]:
        """What the page has asked for and its policy has not blocked."""
        return list(self._asked.values())

    def __enter__(self) -> Self:
        program = find_chromium()
        assert program, "no Chromium on this machine"
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4. A shell need not know numbers above 9, so
        # that Python puts the pipes there, from numbers above both.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, to_write)]
        flags = [
            *FLAGS,
            f"--user-data-dir={self._profile.name}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        launcher = [sys.executable, "-c", LAUNCH, *map(str, ends), program, *flags]
        self._process = subprocess.Popen(
            launcher,
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_read, to_write, *ends):
            os.close(end)
        self._session = ""
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.resize(*self.size)
        if self.dark:
            self.send(
                "Emulation.setEmulatedMedia",
                features=[{"name": "prefers-color-scheme", "value": "dark"}],
            )
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.kill()
        self._process.wait()
        self._profile.cleanup()

    def resize(self, width: int, height: int) -> None:
        """Give the page another size, in pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def open(self, page: Path) -> None:
        """Show a page of this machine, and wait until it has loaded."""
        self.send("Page.navigate", url=page.resolve().as_uri())
        self._wait("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, of a promise when it is kept."""
        given = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        found = self.send("Runtime.evaluate", **given)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
            )

    def click(self, x: float, y: float) -> None:
        """Click at a place of the visible part of the page."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left",
                clickCount=1,
            )

    def point(self, x: float, y: float) -> None:
        """Move the mouse to a place of the visible part of the page."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, file: Path, *, whole: bool = True) -> None:
        """Write what is seen as a PNG: the whole page, or its visible part."""
        found = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))

    def send(self, method: str, **given: Any) -> dict[str, Any]:
        """Send a command, and return its answer."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])

    def _wait(self, event: str) -> None:
        while self._receive().get("method") != event:
            pass

    def _receive(self) -> dict[str, Any]:
        """The next message; what the page complains of and asks the network for is noted."""
        until = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            assert time.monotonic() < until, "Chromium does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        found = json.loads(message)
        given = found.get("params", {})
        if found.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(given["exceptionDetails"]))
        elif found.get("method") == "Log.entryAdded":
            self.errors.append(given["entry"]["text"])
        elif found.get("method") == "Network.requestWillBeSent":
            self._asked[given["requestId"]] = given["request"]["url"]
        elif found.get("method") == "Network.loadingFailed" and given.get(
            "blockedReason"
        ):
            self.blocked.append(self._asked.pop(given["requestId"]))
        return dict(found)
