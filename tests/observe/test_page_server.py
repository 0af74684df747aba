"""The page over HTTP: who gets it, with which headers, and what it does not give away."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from page_cases import write_run
from prometheus_client import CollectorRegistry
from yarl import URL

from asyncgrpo.observe.page.assets import ASSETS
from asyncgrpo.observe.page.handlers import PageHandlers
from asyncgrpo.observe.page.reader import RunReader
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.server import MetricsServer

Answer = tuple[int, str, Mapping[str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_run(tmp_path_factory.mktemp("page") / "demo")


@asynccontextmanager
async def served(
    reader: Any, *, host: str = "127.0.0.1", token: str | None = None, timeout: float = 20.0
) -> AsyncIterator[str]:
    page = PageHandlers(reader, timeout)
    async with asyncio.timeout(20), MetricsServer(CollectorRegistry(), host, 0, token, page) as server:
        yield str(server.url).replace("0.0.0.0", "127.0.0.1")


async def get(url: str, cookies: Mapping[str, str] | None = None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession(cookies=cookies, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
        session.get(URL(url, encoded=True), headers=named, allow_redirects=False) as response,
    ):
        return response.status, await response.text(), response.headers.copy()


async def test_page_and_data_are_beside_the_metrics(folder: RunFolder) -> None:
    async with served(RunReader(folder)) as url:
        assert (await get(f"{url}/metrics"))[0] == 200
        status, html, headers = await get(f"{url}/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        for name in ASSETS:
            assert f'"static/{name}"' in html
            assert (await get(f"{url}/static/{name}"))[0] == 200
        status, text, headers = await get(f"{url}/api/series")
        assert (status, json.loads(text)["rows"], headers["Cache-Control"]) == (200, 24, "no-store")
        status, text, _ = await get(f"{url}/api/group?of=step_000001&group=10")
        assert json.loads(text)["prompt_id"] == "0-10"


async def test_nothing_of_other_hosts_or_inline_may_run(folder: RunFolder) -> None:
    async with served(RunReader(folder)) as url:
        for path in ("", "static/main.js", "api/run", "api/nothing", "static/nothing"):
            policy = (await get(f"{url}/{path}"))[2]["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "unsafe" not in policy


async def test_nothing_else_is_read(folder: RunFolder) -> None:
    (folder.path.parent / "secret.parquet").write_text("secret")
    async with served(RunReader(folder)) as url:
        for path, status in (
            ("static/../server.py", 404),
            ("static/..%2f..%2f..%2fserver.py", 404),
            ("static/%2e%2e/server.py", 404),
            ("static/index.html", 404),
            ("api/rollouts?of=../secret", 404),
            ("api/rollouts?of=%2e%2e%2fsecret", 404),
            ("api/group?of=step_000001&group=..", 400),
            ("api/..%2f..%2fconfig.yaml", 404),
            ("config.yaml", 404),
        ):
            answer = await get(f"{url}/{path}")
            assert answer[0] == status, path
            assert "secret" not in answer[1].replace("../secret", "")


async def test_a_web_site_whose_name_points_here_gets_nothing(folder: RunFolder) -> None:
    async with served(RunReader(folder)) as url:
        for host, status in (
            ("evil.example:80", 403),
            ("127.0.0.1.evil.example", 403),
            ("localhost:8123", 200),
            ("[::1]:1", 200),
            ("run.localhost", 200),
        ):
            assert (await get(f"{url}/api/run", Host=host))[0] == status, host
        assert (await get(f"{url}/metrics", Host="a-scraper-s-name-of-it"))[0] == 200


async def test_elsewhere_the_page_wants_a_token(folder: RunFolder) -> None:
    async with served(RunReader(folder), host="0.0.0.0") as url:
        status, said, _ = await get(f"{url}/api/run")
        assert status == 403
        assert "observe.metrics_token_env" in said
        assert (await get(f"{url}/"))[0] == 403
        assert (await get(f"{url}/metrics"))[0] == 200


async def test_a_token_once_is_a_cookie_from_then_on(folder: RunFolder) -> None:
    async with served(RunReader(folder), host="0.0.0.0", token="s3cret") as url:
        for path in ("/", "/api/run", "/static/main.js", "/metrics", "/?token=wrong"):
            assert (await get(url + path))[0] == 401, path
        assert (await get(f"{url}/api/run", Authorization="Bearer s3cret"))[0] == 200
        status, _, headers = await get(f"{url}/?token=s3cret")
        assert (status, headers["Location"]) == (303, "./")
        name, _, rest = headers["Set-Cookie"].partition("=")
        cookie = rest.partition(";")[0]
        assert name == f"asyncgrpo_{URL(url).port}"
        assert "HttpOnly" in rest
        assert "SameSite=Strict" in rest
        assert "s3cret" not in rest
        assert (await get(f"{url}/api/run", {name: cookie}))[0] == 200
        assert (await get(f"{url}/api/run", {name: cookie[:-1]}))[0] == 401
        assert (await get(f"{url}/api/run?token=s3cret"))[0] == 401  # only the page itself may be opened so


class Slow:
    """A disk that hangs until it is let go."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.may_go_on = threading.Event()
        self.inside = 0
        self.most = 0

    def answer(self, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.may_go_on.wait(10)
        self.inside -= 1
        return {"name": name}


async def test_a_disk_that_hangs_holds_up_neither_the_loop_nor_a_second_reader(tmp_path: Path) -> None:
    slow = Slow(RunFolder(tmp_path))
    async with served(slow, timeout=1.0) as url:
        answers = await asyncio.gather(get(f"{url}/api/run"), get(f"{url}/api/series"), get(f"{url}/healthz"))
        assert [status for status, _, _ in answers] == [503, 503, 200]
        late, text, _ = await get(f"{url}/api/run")
        assert late == 503
        assert "has not answered yet" in text
        slow.may_go_on.set()
        while slow.inside:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        status, text, _ = await get(f"{url}/api/run")
        assert (status, json.loads(text)) == (200, {"name": "run"})
        assert slow.most == 1
