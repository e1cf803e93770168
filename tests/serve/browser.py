"""A real Chromium, driven over its debugging pipe: what a person sees, types and clicks, and what the console says."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from itertools import count
from pathlib import Path
from typing import Any, Self

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe", "about:blank",
)  # fmt: skip
PATIENCE = 300.0


class Browser:
    def __init__(self, program: str, folder: Path) -> None:
        (theirs_in, self._out), (self._in, theirs_out) = os.pipe(), os.pipe()

        def as_three_and_four() -> None:  # where Chromium looks for the pipe
            os.dup2(os.dup(theirs_in), 3)
            os.dup2(os.dup(theirs_out), 4)

        self._process = subprocess.Popen(
            [program, f"--user-data-dir={folder}", *FLAGS], close_fds=False, preexec_fn=as_three_and_four,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers, self._rest, self._session = count(1), b"", None
        self.console: list[str] = []
        target = next(t for t in self._ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self._ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def go(self, address: str) -> None:
        self._ask("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Until it is true; a page may be on its way in between."""
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            try:
                if self.evaluate(f"Boolean({script})"):
                    return
            except AssertionError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}; at {self.evaluate('location.href')}: {self.text()[:2000]}")

    def text(self) -> str:
        return str(self.evaluate("document.body.innerText"))

    def click(self, selector: str) -> None:
        self.wait(f"document.querySelector({json.dumps(selector)})")
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, text: str) -> None:
        """Types it, as a keyboard does."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self._ask("Input.insertText", text=text)

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        for kind, (x, y) in (("mousePressed", begin), ("mouseMoved", end), ("mouseReleased", end)):
            self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def choose_file(self, selector: str, path: Path) -> None:
        root = self._ask("DOM.getDocument")["root"]["nodeId"]
        found = self._ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self._ask("DOM.setFileInputFiles", files=[str(path)], nodeId=found)

    def resize(self, width: int, *, height: int = 900, dark: bool = False) -> None:
        mode = "dark" if dark else "light"
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A screenshot of the page, below the fold too."""
        shot = self._ask("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def too_wide(self) -> list[str]:
        """What reaches out of the page to the right."""
        return list(
            self.evaluate(
                "[...document.body.querySelectorAll('*')].filter((e) => !e.closest('.scroll') && !e.closest('svg') && "
                "!e.closest('.skip') && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.tagName + '.' + e.className)"
            )
        )

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            said = self._receive()
            if said.get("id") == number:
                assert "error" not in said, said
                found: dict[str, Any] = said["result"]
                return found
            if said.get("method") == "Log.entryAdded":
                self.console.append(said["params"]["entry"]["text"])
            elif said.get("method") == "Runtime.consoleAPICalled":
                self.console += [str(each.get("value", each)) for each in said["params"]["args"]]
            elif said.get("method") == "Runtime.exceptionThrown":
                self.console.append(str(said["params"]["exceptionDetails"].get("text")))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._in, 1 << 16)
            assert data, "the browser has ended"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        said: dict[str, Any] = json.loads(text)
        return said
