"""Rewards from a server, against a real one that answers as it is told."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from reward_scoring import COMPLETIONS, TEXTS, prompt

from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import ConfigError, GroupUnscored, RewardError
from asyncgrpo.rewards import bound, from_config, score_group
from asyncgrpo.rewards.remote import LARGEST_ANSWER
from asyncgrpo.types import Sample

Answer = web.StreamResponse | Callable[[], Any]
GOOD = {"rewards": [1, 0.5, None]}


class Server:
    """Gives the answers in turn, the last one for ever, and keeps the requests."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[dict[str, str], Any]] = []
        self.url = ""

    async def score(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((dict(request.headers), await request.json()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int | tuple):
            status, text, *headers = answer if isinstance(answer, tuple) else (answer, "")
            return web.Response(status=status, text=text, headers=headers[0] if headers else None)
        if answer == "hang":
            await asyncio.sleep(30)
        if answer == "drop":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(answer)


@asynccontextmanager
async def serving(*answers: Any) -> AsyncIterator[Server]:
    server = Server(*answers)
    app = web.Application()
    app.router.add_post("/v1/judge", server.score)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    server.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1/judge"  # type: ignore[attr-defined]
    try:
        yield server
    finally:
        await runner.cleanup()


async def scored(url: str, *, timeout: float = 20.0, columns: Any = None, **settings: Any) -> list[Sample]:
    functions = bound(from_config([RewardSection(url=url, timeout=timeout, **settings)]), max_completion_length=8)
    async with asyncio.timeout(25):
        given = prompt([{"role": "user", "content": "hi"}], **(columns or {}))
        return await score_group(functions, given, COMPLETIONS, TEXTS)


async def test_a_group_is_one_request_with_its_columns() -> None:
    async with serving(GOOD) as server:
        samples = await scored(server.url, columns={"answer": 4})
    assert [sample.rewards for sample in samples] == [{"judge": 1.0}, {"judge": 0.5}, {"judge": None}]
    [(headers, request)] = server.requests
    assert request == {
        "prompts": [[{"role": "user", "content": "hi"}]] * 3,
        "completions": [[{"role": "assistant", "content": text}] for text in TEXTS],
        "columns": {"answer": [4, 4, 4]},
    }
    assert "Authorization" not in headers


@pytest.mark.parametrize("fault", [(500, "out of memory"), 503, (429, "slow down"), "drop"])
async def test_a_server_that_fails_for_a_while_is_asked_again(fault: Any) -> None:
    async with serving(fault, fault, GOOD) as server:
        samples = await scored(server.url)
    assert [sample.rewards["judge"] for sample in samples] == [1.0, 0.5, None]
    assert len(server.requests) == 3


async def test_a_server_that_goes_on_failing_is_given_up_in_its_own_words() -> None:
    async with serving((500, "out of memory")) as server:
        with pytest.raises(RewardError, match=r"judge answered 500: out of memory \(the last of \d tries in 1.9 s\)"):
            await scored(server.url, timeout=2.0)
    assert len(server.requests) > 1


async def test_a_server_that_is_not_there_is_named_without_its_login() -> None:
    async with serving(GOOD) as server:
        url = server.url.replace("http://", "http://me:secret@")
    with pytest.raises(RewardError, match=r"http://\*\*\*@127.0.0.1:\d+/v1/judge: Cannot connect") as caught:
        await scored(url, timeout=1.0)
    assert "secret" not in str(caught.value)


async def test_a_server_that_hangs_is_late() -> None:
    async with serving("hang") as server:
        with pytest.raises(GroupUnscored, match=r"gave no answer in time \(1 tries\)|took longer than its timeout"):
            await scored(server.url, timeout=0.5, on_error="drop_group")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((400, "no model of that name"), "answered 400: no model of that name"),
        ((401, "who are you"), "answered 401: who are you"),
        ((404, ""), "answered 404"),
        ((200, "garbage"), "answered the str 'garbage', expected {\"rewards\""),
        ((200, "[" * 100_000), 'expected {"rewards"'),
        ({"scores": [1, 2, 3]}, 'expected {"rewards"'),
        ({"rewards": 1.0}, 'expected {"rewards"'),
        ([1, 2, 3], 'expected {"rewards"'),
        ({"rewards": [1.0]}, "returned 1 values for 3 completions"),
        ({"rewards": [1.0, "high", 0.0]}, "returned the str 'high' for completion 1"),
        ((200, '{"rewards": [NaN, 1, 1]}'), "returned nan for completion 0"),
        ((200, "x" * (LARGEST_ANSWER + 1)), "answered with more than 4 MiB"),
        ((302, "", {"Location": "http://me:pw@elsewhere/x"}), r"answered 302, a redirect to http://\*\*\*@elsewhere/x"),
        ((307, "", {"Location": "/other"}), "answered 307, a redirect to /other; name that URL itself"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_any_other_answer_fails_the_call_at_once(answer: Any, message: str) -> None:
    async with serving(answer) as server:
        with pytest.raises(RewardError, match=f"^reward function 'judge', prompt 0-7: .*{message}"):
            await scored(server.url)
    assert len(server.requests) == 1


async def test_a_sample_that_the_server_could_not_score_costs_itself_only() -> None:
    async with serving({"rewards": [1, {"error": "no verdict"}, 0]}) as server:
        samples = await scored(server.url, on_error="drop_sample")
        with pytest.raises(RewardError, match="for completion 1 the exception ServerFailed: no verdict"):
            await scored(server.url)
    assert [sample.text for sample in samples] == ["a", "ccc"]


async def test_the_key_is_read_from_the_environment_and_written_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sesame")
    async with serving(GOOD) as server:
        await scored(server.url, api_key_env="JUDGE_KEY")
        await scored(server.url.replace("http://", "http://me:secret@"))
    assert [headers["Authorization"] for headers, _ in server.requests] == ["Bearer sesame", "Basic bWU6c2VjcmV0"]
    section = RewardSection(url="http://me:secret@judge/score?api_key=x", timeout=1.0)
    assert json.loads(section.model_dump_json())["url"] == "http://***@judge/score?api_key=***"
    assert "secret" not in repr(from_config([section])[0].call)


def test_a_key_that_is_not_set_and_a_masked_login_are_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="api_key_env=NO_SUCH_KEY: that environment variable is not set"):
        bound(from_config([RewardSection(url="http://judge/score", api_key_env="NO_SUCH_KEY")]), 8)
    with pytest.raises(ConfigError, match=r"the login in .* was masked when it was saved"):
        bound(from_config([RewardSection(url="http://***@judge/score")]), 8)


async def test_a_column_that_is_no_json_is_refused_by_name() -> None:
    async with serving(GOOD) as server:
        with pytest.raises(RewardError, match="the columns answer, picture cannot be sent as JSON"):
            await scored(server.url, columns={"answer": 1, "picture": b"\xff"})
    assert server.requests == []
