"""A headless Chromium, driven by its DevTools protocol: no package is needed but the browser itself."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium here; on Debian: apt-get install chromium"
SWITCHES = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--mute-audio",
    "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium(profile: Path) -> Iterator[str]:
    """Its address for DevTools."""
    program = find_chromium()
    assert program is not None, MISSING
    command = [program, *SWITCHES, f"--user-data-dir={profile}", "about:blank"]
    environment = {**os.environ, "HOME": str(profile)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"DevTools listening on (ws://\S+)", line):
                yield found[1]
                return
        raise AssertionError("chromium ended:\n" + "".join(said))
    finally:
        process.kill()
        process.communicate()


class Tab:
    """`complaints`: errors of scripts, of loading and of the security policy. `asked`: addresses it asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self._socket, self._session = socket, ""
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answering = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | ({"sessionId": self._session} if self._session else {}))
        async with asyncio.timeout(20):
            answer = await answering
        assert "error" not in answer, f"{method}: {answer}"
        result: dict[str, Any] = answer["result"]
        return result

    async def listen(self) -> None:
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                answering = self._answers.pop(event["id"])
                if not answering.done():
                    answering.set_result(event)
                continue
            details = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    self.complaints.append(json.dumps(details["exceptionDetails"]))
                case "Log.entryAdded" if details["entry"]["level"] == "error":
                    self.complaints.append(details["entry"]["text"] + " " + details["entry"].get("url", ""))
                case "Network.requestWillBeSent":
                    self.asked.append(details["request"]["url"])

    async def begin(self) -> None:
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        self._session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.look()

    async def look(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Size of the window, and what the user prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def ask(self, script: str) -> Any:
        """Value of an expression."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script: str) -> Any:
        """Its first value that is true; true for an element. What it raises meanwhile is that it is not there yet."""
        wrapped = (
            f"(() => {{ try {{ const value = ({script}); return value instanceof Node || value; }} catch {{ }} }})()"
        )
        try:
            async with asyncio.timeout(15):
                while not (value := await self.ask(wrapped)):  # noqa: ASYNC110
                    await asyncio.sleep(0.03)
        except TimeoutError:
            shown = await self.ask("document.body.innerText")
            raise AssertionError(f"never true: {script}\n{self.complaints}\n{shown}") from None
        return value

    async def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            code = {"Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}.get(
                key, 0
            )
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    async def picture(self, *, whole: bool = True) -> bytes:
        """Of the window, or of the whole page, as PNG."""
        answer = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])


@asynccontextmanager
async def tab(address: str) -> AsyncIterator[Tab]:
    async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
        opened = Tab(socket)
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(opened.listen())
            try:
                await opened.begin()
                yield opened
            finally:
                listening.cancel()
