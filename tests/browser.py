"""A headless Chromium, driven over its debugging pipe: no port, no network, no package.

Protocol: https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

TIMEOUT = 60.0
HEIGHT = 1000
"""Of the window."""
NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """The browser; the test is skipped without one, unless QTOOL_REQUIRE_CHROMIUM=1 makes its absence an error."""
    for name in NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    reason = "there is no Chromium (Debian: apt-get install chromium)"
    if os.environ.get("QTOOL_REQUIRE_CHROMIUM", "") not in ("", "0"):
        pytest.fail(f"QTOOL_REQUIRE_CHROMIUM is set, and {reason}")
    pytest.skip(reason)


class Browser:
    """One page of one browser.

    Args:
        profile: An empty folder for the browser's own files.
    """

    def __init__(self, profile: Path) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        # the browser reads file 3 and writes file 4; numbers above those cannot be in the way
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (requests, answers)]
        redirect = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                   "--remote-debugging-pipe", "--no-first-run", "--disable-extensions",
                   "--disable-background-networking", f"--user-data-dir={profile}", "about:blank")  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, "-", *map(str, theirs), chromium(), *options],
            pass_fds=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (requests, answers, *theirs):
            os.close(fd)
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._requests)  # the end of the pipe is the end of the browser
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its result; events meanwhile are kept."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + TIMEOUT
        while True:
            answer = self._read(end)
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _read(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._answers, 1 << 20) if ready else b""
            assert data, "Chromium does not answer"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def open(self, path: Path, width: int, *, scripts: bool = True, media: Mapping[str, str] | None = None) -> None:
        """Load a file and wait until it is there."""
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        features = [{"name": name, "value": value} for name, value in (media or {}).items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        end = time.monotonic() + TIMEOUT
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read(end))

    def value(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def complaints(self) -> list[str]:
        """What the page said on the console, errors and violations of its policy among it."""
        self.value("0")  # what is on its way arrives before the answer
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in kinds]

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
