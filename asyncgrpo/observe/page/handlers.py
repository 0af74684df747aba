"""The page over HTTP: its files, and the answers of a `RunReader` as JSON.

The event loop never reads a file: every answer is made in a thread, one at a time, within `timeout`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import msgspec
from aiohttp import web

from asyncgrpo.concurrency import aside, deadline
from asyncgrpo.observe.page.assets import ASSETS, CONTENT_TYPES, index_html, read_asset
from asyncgrpo.observe.page.reader import BadQuestion, RunReader
from asyncgrpo.observe.page.rollouts import Missing

__all__ = ["PAGE_HEADERS", "PageHandlers"]

PAGE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PageHandlers:
    """timeout: seconds that an answer may take."""

    def __init__(self, reader: RunReader, timeout: float) -> None:
        self._reader, self._timeout = reader, timeout
        self._turn = asyncio.Lock()
        self._reading = threading.Lock()
        """Held by who reads, also by one that was given up as late: no other may begin meanwhile."""

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/", self._index)
        app.router.add_get("/static/{name}", self._static)
        app.router.add_get("/api/{name}", self._api)

    async def _index(self, request: web.Request) -> web.Response:
        text = await aside(index_html)
        return web.Response(text=text, content_type="text/html", headers=PAGE_HEADERS)

    async def _static(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in ASSETS:
            return _said(404, f"there is no static/{name}")
        text = await aside(lambda: read_asset(name))
        kind = CONTENT_TYPES[name.rpartition(".")[2]]
        return web.Response(text=text, content_type=kind, charset="utf-8", headers=PAGE_HEADERS)

    async def _api(self, request: web.Request) -> web.Response:
        name, query = request.match_info["name"], dict(request.query)

        def work() -> bytes:
            if not self._reading.acquire(blocking=False):
                raise TimeoutError("the disk has not answered yet what was asked before")
            try:
                return msgspec.json.encode(self._reader.answer(name, query))
            finally:
                self._reading.release()

        try:
            async with deadline(self._timeout, TimeoutError, f"reading {self._reader.folder.path}"), self._turn:
                body = await aside(work)
        except Missing as error:
            return _said(404, str(error))
        except BadQuestion as error:
            return _said(400, str(error))
        except (OSError, TimeoutError) as error:
            return _said(503, str(error))
        return web.Response(body=body, content_type="application/json", charset="utf-8", headers=PAGE_HEADERS)


def _said(status: int, text: str) -> web.Response:
    body = msgspec.json.encode({"error": text})
    return web.Response(status=status, body=body, content_type="application/json", headers=PAGE_HEADERS)
