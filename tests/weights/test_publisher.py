"""The order of a publish, and what is left when one fails."""

import asyncio
import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from asyncgrpo.errors import EngineRejected, EngineUnavailable, PublishError
from asyncgrpo.types import InFlight, Snapshot
from asyncgrpo.weights.publisher import Publisher


class RecordingEngine:
    """Notes every call; a call named in `failures` raises that many times, one in `hangs` never ends."""

    url = "http://nowhere"

    def __init__(
        self, name: str, *, failures: Mapping[str, int] | None = None, hangs: Sequence[str] = (), seconds: float = 0.0
    ) -> None:
        self.name = name
        self.calls: list[str] = []
        self._failures, self._hangs, self._seconds = dict(failures or {}), hangs, seconds

    async def _call(self, name: str, argument: str = "") -> None:
        self.calls.append(f"{name} {argument}".strip())
        if name in self._hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(self._seconds)
        if self._failures.get(name, 0) > 0:
            self._failures[name] -= 1
            raise EngineUnavailable(f"engine {self.name} answered 500: CUDA error in {name}")

    async def pause(self, in_flight: str = "keep") -> None:
        await self._call("pause")

    async def resume(self) -> None:
        await self._call("resume")

    async def init_weight_transfer(self, init_info: Mapping[str, Any]) -> None:
        await self._call("init", str(dict(init_info)))

    async def start_weight_update(self) -> None:
        await self._call("start")

    async def update_weights(self, info: Mapping[str, Any]) -> None:
        await self._call("update", info["path"])

    async def finish_weight_update(self, version: str) -> None:
        await self._call("finish", version)

    async def world_size(self) -> int:
        return 1


class PathTransport:
    """Loads as the shared-memory transport does, from files that need not exist."""

    holds_learner = False
    holds_engines = True

    def __init__(self, log: list[str]) -> None:
        self._log = log
        self.files: list[str] = []

    async def connect(self, engines: Sequence[Any]) -> None:
        for engine in engines:
            await engine.init_weight_transfer({})

    async def prepare(self, version: int, perturbation: int | None = None) -> Snapshot:
        self._log.append(f"prepare {version} {perturbation}")
        path = f"/v{version}"
        self.files.append(path if path not in self.files else f"{path}-again")
        return Snapshot(version=version, path=self.files[-1], bytes=100, seconds=0.5)

    async def load(self, engine: Any, snapshot: Snapshot, wire_version: str) -> None:
        await engine.start_weight_update()
        await engine.update_weights({"path": snapshot.path})
        await engine.finish_weight_update(wire_version)

    def discard_but(self, keep: Collection[Snapshot]) -> None:
        kept = [snapshot.path for snapshot in keep]
        self._log += [f"discard {path}" for path in self.files if path not in kept]
        self.files = [path for path in self.files if path in kept]


def publisher_of(*engines: RecordingEngine, timeout: float = 5.0, concurrency: int = 1) -> tuple[Publisher, list[str]]:
    """And the log of what happened outside the engines."""
    log: list[str] = []
    publisher = Publisher(
        PathTransport(log),
        engines,
        incarnation="2",
        timeout=timeout,
        concurrency=concurrency,
        on_served=lambda engine, version: log.append(f"{engine} serves {version}"),
    )
    return publisher, log


LOAD = ["start", "update /v7", "finish 2:7"]


async def test_each_engine_is_paused_loaded_named_and_resumed() -> None:
    engines = [RecordingEngine("a"), RecordingEngine("b")]
    publisher, log = publisher_of(*engines)
    async with asyncio.timeout(5):
        await publisher.connect()
        report = await publisher.publish(7, 11)
    for engine in engines:
        assert engine.calls == ["init {}", "pause", *LOAD, "resume"]
    assert log == ["prepare 7 11", "a serves 7", "b serves 7"]
    assert (report.version, report.bytes, report.prepare_seconds) == (7, 100, 0.5)
    assert report.paused_seconds.keys() == {"a", "b"}


async def test_a_failed_load_is_done_again_as_a_whole() -> None:
    engine = RecordingEngine("a", failures={"update": 1})
    publisher, log = publisher_of(engine)
    async with asyncio.timeout(5):
        await publisher.publish(7)
    assert engine.calls == ["pause", "start", "update /v7", "finish incomplete", *LOAD, "resume"]
    assert "a serves 7" in log


@pytest.mark.parametrize("call", ["start", "update", "finish"])
async def test_a_load_that_fails_twice_leaves_the_engine_paused_and_unnamed(call: str) -> None:
    engine = RecordingEngine("a", failures={call: 3})
    publisher, log = publisher_of(engine)
    async with asyncio.timeout(5):
        with pytest.raises(PublishError, match=rf"publish of version 7 to a failed: .*500: CUDA error in {call}"):
            await publisher.publish(7)
    assert "resume" not in engine.calls
    assert engine.calls.count("start") == 2
    assert log == ["prepare 7 None"], "neither served nor old snapshots discarded"


async def test_a_failed_pause_loads_nothing() -> None:
    engine = RecordingEngine("a", failures={"pause": 1})
    publisher, log = publisher_of(engine)
    async with asyncio.timeout(5):
        with pytest.raises(PublishError, match="CUDA error in pause"):
            await publisher.publish(7)
    assert engine.calls == ["pause"]
    assert "a serves 7" not in log


async def test_an_engine_that_does_not_resume_serves_nothing() -> None:
    engine = RecordingEngine("a", failures={"resume": 1})
    publisher, log = publisher_of(engine)
    async with asyncio.timeout(5):
        with pytest.raises(PublishError, match="CUDA error in resume"):
            await publisher.publish(7)
    assert "a serves 7" not in log


@pytest.mark.parametrize("call", ["pause", "start", "update", "finish", "resume"])
async def test_a_call_that_never_answers_ends_at_the_deadline(call: str) -> None:
    engine = RecordingEngine("a", hangs=[call])
    publisher, log = publisher_of(engine, timeout=0.1)
    begun = time.monotonic()
    async with asyncio.timeout(5):
        with pytest.raises(PublishError, match=r"publish of version 7 to a took longer than 0\.1 s"):
            await publisher.publish(7)
    assert time.monotonic() - begun < 4.5
    assert ("resume" in engine.calls) is (call == "resume")
    assert "a serves 7" not in log


async def test_a_failing_engine_abandons_the_others() -> None:
    broken, hanging = RecordingEngine("a", failures={"pause": 1}), RecordingEngine("b", hangs=["update"])
    publisher, _ = publisher_of(broken, hanging, concurrency=2)
    async with asyncio.timeout(5):
        with pytest.raises(PublishError, match="to a failed"):
            await publisher.publish(7)
    assert "resume" not in hanging.calls


@pytest.mark.parametrize(("concurrency", "most_paused"), [(1, 1), (2, 2), (9, 3)])
async def test_no_more_engines_than_allowed_are_paused_at_once(concurrency: int, most_paused: int) -> None:
    paused: set[str] = set()
    seen: list[int] = []

    class Counted(RecordingEngine):
        async def pause(self, in_flight: str = "keep") -> None:
            paused.add(self.name)
            seen.append(len(paused))
            await super().pause()

        async def resume(self) -> None:
            await super().resume()
            paused.discard(self.name)

    publisher, _ = publisher_of(*(Counted(name, seconds=0.01) for name in "abc"), concurrency=concurrency)
    async with asyncio.timeout(5):
        await publisher.publish(7)
    assert max(seen) == most_paused
    assert not paused


async def test_a_refusal_is_tried_once_more_too() -> None:
    """4xx is final for a request, but a load that was cut short can only be mended by another."""

    class Refusing(RecordingEngine):
        async def update_weights(self, info: Mapping[str, Any]) -> None:
            await super().update_weights(info)
            raise EngineRejected("engine a answered 404 at /update_weights")

    engine = Refusing("a")
    publisher, _ = publisher_of(engine)
    async with asyncio.timeout(5):
        with pytest.raises(PublishError, match="404 at /update_weights"):
            await publisher.publish(7)
    assert engine.calls.count("update /v7") == 2


def supervised(
    *engines: RecordingEngine, timeout: float = 5.0, concurrency: int = 1
) -> tuple[Publisher, list[str], list[str]]:
    """A publisher whose engines leave when they fail, its log, and the failures."""
    publisher, log = publisher_of(*engines, timeout=timeout, concurrency=concurrency)
    failures: list[str] = []

    def leave(engine: str, error: PublishError) -> None:
        failures.append(str(error))
        publisher.leave(engine)

    publisher.on_failed = leave
    return publisher, log, failures


async def test_an_engine_that_fails_leaves_and_the_others_go_on() -> None:
    engines = [RecordingEngine("a", failures={"update": 2}), RecordingEngine("b")]
    publisher, log, failures = supervised(*engines)
    async with asyncio.timeout(5):
        report = await publisher.publish(7)
        assert failures == ["publish of version 7 to a failed: engine a answered 500: CUDA error in update"]
        assert report.paused_seconds.keys() == {"b"}
        assert log == ["prepare 7 None", "b serves 7"]
        calls = len(engines[0].calls)
        await publisher.publish(8)
        assert len(engines[0].calls) == calls, "it has left"
        await publisher.join("a")
    assert engines[0].calls[calls:] == ["init {}", "pause", "start", "update /v8", "finish 2:8", "resume"]
    assert log[-3:] == ["b serves 8", "discard /v7", "a serves 8"]


async def test_an_engine_that_leaves_does_not_hold_up_the_others() -> None:
    engines = [RecordingEngine("a", hangs=["update"]), RecordingEngine("b")]
    publisher, log, failures = supervised(*engines)
    async with asyncio.timeout(5):
        publishing = asyncio.create_task(publisher.publish(7))
        while engines[0].calls[-1:] != ["update /v7"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        publisher.leave("a")
        assert (await publishing).paused_seconds.keys() == {"b"}
    assert (failures, "a serves 7" in log) == ([], False)


async def test_a_version_that_is_published_while_an_engine_joins_reaches_it_too() -> None:
    slow = RecordingEngine("a", seconds=0.02)
    publisher, log, _ = supervised(slow, RecordingEngine("b"), concurrency=2)
    async with asyncio.timeout(5):
        await publisher.publish(7)
        publisher.leave("a")
        joining = asyncio.create_task(publisher.join("a"))
        while slow.calls[-1] != "update /v7" or slow.calls.count("update /v7") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await publisher.publish(8)
        assert log[-2:] == ["prepare 8 None", "b serves 8"], "a still reads version 7"
        await joining
    assert slow.calls[-6:] == ["resume", "pause", "start", "update /v8", "finish 2:8", "resume"]
    assert log[-2:] == ["a serves 8", "discard /v7"]
    assert log.count("a serves 7") == 1, "by the first publish"


async def test_a_join_waits_for_what_the_engine_is_still_loading() -> None:
    engine = RecordingEngine("a", seconds=0.02)
    publisher, log, _ = supervised(engine)
    async with asyncio.timeout(5):
        publishing = asyncio.create_task(publisher.publish(7))
        while "start" not in engine.calls:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        publisher.leave("a")
        await publisher.join("a")
        await publishing
    assert engine.calls[-6:] == ["init {}", "pause", *LOAD, "resume"]
    assert log.count("a serves 7") == 1


@pytest.mark.parametrize("call", ["init", "update"])
async def test_a_join_that_fails_or_hangs_says_so(call: str) -> None:
    for engine, words in (
        (RecordingEngine("a", failures={call: 4}), f"500: CUDA error in {call}"),
        (RecordingEngine("a", hangs=[call]), r"to a took longer than 0\.1 s|preparing a for weights took longer"),
    ):
        publisher, log, _ = supervised(engine, timeout=0.1)
        publisher.leave("a")
        await publisher.publish(7)
        async with asyncio.timeout(5):
            with pytest.raises(PublishError, match=words):
                await publisher.join("a")
        assert "a serves 7" not in log
        await publisher.publish(8)
        assert "a serves 8" not in log


async def test_pauses_are_told_once() -> None:
    engine = RecordingEngine("a", hangs=["resume"])
    publisher, _, _ = supervised(engine, timeout=0.1)
    assert not publisher.was_paused("a")
    publishing = asyncio.create_task(publisher.publish(7))
    while "pause" not in engine.calls:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert [publisher.was_paused("a") for _ in range(3)] == [True, True, True]
    await publishing
    assert [publisher.was_paused("a") for _ in range(2)] == [True, False]


@pytest.mark.parametrize("in_flight", ["keep", "abort_resume", "finish"])
async def test_requests_under_way_are_treated_as_configured(in_flight: InFlight) -> None:
    class Modes(RecordingEngine):
        async def pause(self, in_flight: str = "keep") -> None:
            await self._call("pause", in_flight)

    engine = Modes("a")
    publisher = Publisher(PathTransport([]), [engine], incarnation="2", timeout=5.0, in_flight=in_flight)
    await publisher.publish(7)
    assert engine.calls[0] == f"pause {in_flight}"


async def test_an_engine_has_no_weights_that_are_known_while_it_loads_and_after_a_failure() -> None:
    engine = RecordingEngine("a", hangs=["resume"])
    publisher, _, _ = supervised(engine, timeout=0.1)
    assert publisher.given("a") is None
    engine._hangs = ()
    await publisher.publish(7)
    assert publisher.given("a") == "2:7"
    engine._hangs = ["update"]
    publishing = asyncio.create_task(publisher.publish(8))
    while engine.calls[-1:] != ["update /v8"]:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert publisher.given("a") is None
    await publishing
    assert publisher.given("a") is None


async def test_versions_between_the_latest_and_what_an_engine_joins_with_are_not_kept() -> None:
    slow = RecordingEngine("a", hangs=["update"])
    publisher, log, _ = supervised(slow, RecordingEngine("b"), concurrency=2)
    async with asyncio.timeout(5):
        publisher.leave("a")
        await publisher.publish(7)
        joining = asyncio.create_task(publisher.join("a"))
        while slow.calls[-1:] != ["update /v7"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for version in (8, 9, 10):
            await publisher.publish(version)
        assert [line for line in log if "discard" in line] == ["discard /v8", "discard /v9"]
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        assert log[-1] == "discard /v7"


async def test_snapshots_of_a_course_that_was_taken_back_go() -> None:
    """One that was being loaded, and one that was prepared: neither is older than what is published then."""
    engine = RecordingEngine("a")
    publisher, log, _ = supervised(engine)
    transport: Any = publisher._transport
    async with asyncio.timeout(5):
        await publisher.publish(8)
        engine._hangs = ["update"]
        publishing = asyncio.create_task(publisher.publish(9))
        while engine.calls[-1:] != ["update /v9"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        engine._hangs = ()
        await publisher.prepare(10)
        assert transport.files == ["/v9", "/v10"]
        snapshot = await publisher.prepare(4)
        assert transport.files == ["/v9", "/v4"], "an engine that joins now is given version 9"
        await publisher.load(snapshot)
        assert transport.files == ["/v4"]
    assert log[-2:] == ["a serves 4", "discard /v9"]


async def test_a_join_that_ends_while_the_next_version_is_written_leaves_that_alone() -> None:
    publisher, _, _ = supervised(RecordingEngine("a"), RecordingEngine("b"))
    transport: Any = publisher._transport
    async with asyncio.timeout(5):
        await publisher.publish(7)
        publisher.leave("a")
        snapshot = await publisher.prepare(8)
        await publisher.join("a")
        assert transport.files == ["/v7", "/v8"]
        await publisher.load(snapshot)
    assert transport.files == ["/v8"]


async def test_a_version_that_is_trained_again_is_told_from_the_one_that_an_engine_joins_with() -> None:
    slow = RecordingEngine("a", hangs=["update"])
    publisher, _, _ = supervised(slow, RecordingEngine("b"), concurrency=2)
    transport: Any = publisher._transport
    async with asyncio.timeout(5):
        publisher.leave("a")
        await publisher.publish(9)
        joining = asyncio.create_task(publisher.join("a"))
        while slow.calls[-1:] != ["update /v9"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for version in (8, 9):
            await publisher.publish(version)
        assert transport.files == ["/v9", "/v9-again"]
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        assert transport.files == ["/v9-again"]


async def test_an_engine_that_waits_for_its_turn_joins_with_what_is_the_latest_then() -> None:
    engines = [RecordingEngine("a"), RecordingEngine("b", seconds=0.02)]
    publisher, _, _ = supervised(*engines)
    async with asyncio.timeout(5):
        await publisher.publish(7)
        publisher.leave("a")
        publishing = asyncio.create_task(publisher.publish(8))
        while engines[1].calls.count("pause") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.gather(publisher.join("a"), publishing)
    assert engines[0].calls.count("update /v7") == 1
    assert engines[0].calls[-1] == "resume"


async def test_what_an_engine_was_given_keeps_its_name_under_a_later_incarnation() -> None:
    """Going back to a checkpoint, engines serve what they have until the checkpoint's version reaches them."""
    engine = RecordingEngine("a")
    publisher, _, _ = supervised(engine)
    await publisher.publish(12)
    publisher.adopt("3")
    assert publisher.given("a") == "2:12"
    publisher.leave("a")
    await publisher.join("a")
    assert (engine.calls[-2], publisher.given("a")) == ("finish 2:12", "2:12"), "weights of the former start"
    await publisher.publish(8)
    assert (engine.calls[-2], publisher.given("a")) == ("finish 3:8", "3:8")


async def test_engines_whose_weights_are_not_replaced_are_not_paused() -> None:
    """Adapters are loaded beside those in use; a load that failed leaves nothing open that has to be finished."""
    engine = RecordingEngine("a", failures={"update": 1})
    publisher, log = publisher_of(engine)
    publisher._transport.holds_engines = False
    async with asyncio.timeout(5):
        report = await publisher.publish(7)
    assert engine.calls == ["start", "update /v7", *LOAD]
    assert (report.paused_seconds, publisher.was_paused("a"), publisher.given("a")) == ({"a": 0.0}, False, "2:7")
    assert "a serves 7" in log


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (RecordingEngine("a", hangs=["init"]), r"preparing a for weights took longer than 0\.2 s"),
        (RecordingEngine("a", failures={"init": 1}), "preparing a for weights failed: engine a answered 500"),
    ],
)
async def test_an_engine_that_cannot_be_connected_is_told_and_the_others_are(bad: RecordingEngine, said: str) -> None:
    told: list[tuple[str, PublishError]] = []
    good = RecordingEngine("b")
    publisher = Publisher(PathTransport([]), [bad, good], incarnation="run", timeout=0.2)
    publisher.on_failed = lambda engine, error: told.append((engine, error))
    await publisher.connect()
    ((engine, error),) = told
    assert engine == "a" and re.search(said, str(error))
    assert good.calls == ["init {}"]
