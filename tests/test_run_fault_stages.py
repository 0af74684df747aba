"""Processes of a run that are killed or hang at each of its stages: what `docs/faults.md` says becomes of it.

Every history is judged as a whole: each prompt once, each step once, and the model that the recorded rollouts give.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_cases import Run, children, engine_beside
from stage_cases import (
    Acts,
    EngineProcess,
    after_checkpoint,
    engines_said,
    hang_rank,
    kill_rank,
    rank_processes,
    run,
    snapshots_guardians,
    until,
)
from test_run_resume import check_history

from asyncgrpo.errors import AsyncGRPOError, EngineError, LearnerError, PublishError
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import GENERATE, UPDATE, Fault, FaultPlan

pytestmark = pytest.mark.slow

PROCESS = {"mode": "process", "devices": ["cpu"], "max_restarts": 50}
NO_CHECKPOINTS = {"save_steps": 0, "save_minutes": 0.0}


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    before = children()
    yield
    assert children() <= before
    assert list((tmp_path / "shm").iterdir()) == []


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[FakeEngine]:
    with engine_beside(tiny_model, script=None) as engine:
        yield engine


def test_a_killed_rank_is_started_anew_while_it_publishes_or_saves_and_ends_the_run_at_the_end(
    engine: FakeEngine, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill = after_checkpoint(tmp_path, 1, kill_rank)
    acts = Acts({("publishing", 2): kill, ("saving", 3): kill_rank, ("ending", 1): kill_rank})
    with pytest.raises(LearnerError, match=r"rank 0 .* ended with signal SIGKILL; last lines of .*learner-rank0\.log"):
        run(tiny_model, tmp_path, [engine], acts, learner=PROCESS)
    assert acts.left == {}
    back = re.findall(r"^going back to the checkpoint of step (\d) …$", capsys.readouterr().out, re.MULTILINE)
    assert back == ["1", "2"], "what was being saved is none to go back to"
    assert run(tiny_model, tmp_path, [engine]).steps == 4
    check_history(tmp_path, 4)


def test_a_rank_that_hangs_is_started_anew_while_it_publishes_or_saves_and_ends_the_run_at_the_end(
    engine: FakeEngine, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that hangs as it saves costs that checkpoint, and is found by the deadline of that, not of the next call."""
    hang = after_checkpoint(tmp_path, 1, hang_rank(4.0))
    acts = Acts({("publishing", 2): hang, ("saving", 3): hang_rank(8.0), ("ending", 1): hang_rank(4.0)})
    with pytest.raises(LearnerError, match=r"rank 0 .* did not finish 'save_model' within 3 s; raise its deadline"):
        run(
            tiny_model, tmp_path, [engine], acts,
            learner=PROCESS | {"step_timeout": 3.0}, checkpoint={"save_steps": 1, "save_timeout": 4.0},
        )  # fmt: skip
    assert acts.left == {}
    said = capsys.readouterr().out
    assert "did not finish 'write_snapshot' within 3 s" in said
    late = re.search(r"warning: learner rank 0 \(pid \d+\) did not finish 'save' within 4 s; raise its deadline", said)
    assert late and "going back to the checkpoint of step 2 …" in said[late.end() :]
    assert "did not finish 'train'" not in said
    assert run(tiny_model, tmp_path, [engine]).steps == 4
    check_history(tmp_path, 4)


@pytest.mark.parametrize(("max_restarts", "back"), [(50, ["2"]), (0, [])])
def test_a_disk_that_is_slower_than_its_deadline_sends_a_run_back_once_from_a_checkpoint(
    engine: FakeEngine,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    max_restarts: int,
    back: list[str],
) -> None:
    """Late with the checkpoint of step 3 each time: the second time the run goes on; without restarts, the first."""
    acts = Acts({("saving", number): hang_rank(5.0) for number in ([3, 4] if back else [3])})
    slow = {"save_steps": 1, "save_timeout": 3.0}
    learner = PROCESS | {"max_restarts": max_restarts}
    assert run(tiny_model, tmp_path, [engine], acts, learner=learner, checkpoint=slow).steps == 4
    assert acts.left == {}
    said = capsys.readouterr().out
    log = (tmp_path / "run" / "logs" / "orchestrator.log").read_text()
    assert log.count("no checkpoint of step 3: learner rank 0") == len(back) + 1
    assert re.findall(r"^going back to the checkpoint of step (\d) …$", said, re.MULTILINE) == back
    check_history(tmp_path, 4)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")) == [
        "step-00000002",
        "step-00000004",
    ]


def test_without_a_checkpoint_a_killed_rank_ends_the_run_and_the_same_command_begins_anew(
    engine: FakeEngine, tiny_model: Path, tmp_path: Path
) -> None:
    killing: list[asyncio.Task[None]] = []

    async def kill_as_it_starts(learner: LearnerClient) -> None:
        async def kill() -> None:
            await until(lambda: bool(rank_processes()))
            rank_processes()[0].kill()

        killing.append(asyncio.create_task(kill()))

    at_start = Acts({("starting", 1): kill_as_it_starts})
    with pytest.raises(LearnerError, match=r"rank 0 .* ended with signal SIGKILL"):
        run(tiny_model, tmp_path, [engine], at_start, learner=PROCESS, checkpoint=NO_CHECKPOINTS)
    publishing = Acts({("publishing", 2): kill_rank})
    with pytest.raises(LearnerError, match=r"SIGKILL[\s\S]*there is no checkpoint to go back to"):
        run(tiny_model, tmp_path, [engine], publishing, learner=PROCESS, checkpoint=NO_CHECKPOINTS)
    assert (at_start.left, publishing.left) == ({}, {})
    assert len(Run(tmp_path).steps) == 1
    assert run(tiny_model, tmp_path, [engine], checkpoint=NO_CHECKPOINTS).steps == 4
    check_history(tmp_path, 4)


HARM: Mapping[str, Callable[[EngineProcess], None]] = {
    "killed": lambda engine: engine.server.kill(),
    "hangs": lambda engine: engine.server.suspend(),
    "guardian killed": lambda engine: engine.guardian.kill(),
}


def once(do: Callable[[], None]) -> Callable[[Any], bool]:
    """A condition of a fault that is never met, and does something when it is asked."""

    def ask(body: Any) -> bool:
        do()
        return False

    return ask


@pytest.mark.parametrize(
    ("harm", "startup_timeout", "message"),
    [
        ("killed", 60.0, r"engine-0 ended with exit code 137; last lines of .*engine-0\.log"),
        (
            "hangs",
            4.0,
            r"start of engine-0 took longer than 4 s \(engines\.startup_timeout\); last lines of ",
        ),
        (
            "guardian killed",
            60.0,
            r"engine-0 ended with exit code -9; last lines of .*engine-0\.log",
        ),
    ],
    ids=["killed", "hangs", "guardian killed"],
)
def test_an_engine_that_fails_as_it_starts_ends_the_run(
    harm: str, startup_timeout: float, message: str, tiny_model: Path, tmp_path: Path
) -> None:
    """As it is first asked whether it is well."""
    fault = Fault("slow", on="/health", nth=(0,), match=once(lambda: HARM[harm](EngineProcess(0))))
    with engine_beside(tiny_model, script=None, faults=FaultPlan(fault)) as engine:
        with pytest.raises(EngineError, match=message):
            run(tiny_model, tmp_path, [engine], managed=True, engines={"startup_timeout": startup_timeout})
        assert len(engine.calls("/health")) >= 1
        assert engine.calls("/pause") == []


@pytest.mark.parametrize("on", ["/health", "/server_info", "/init_weight_transfer_engine", UPDATE, GENERATE])
def test_an_engine_that_fails_as_it_starts_comes_back_beside_one_that_is_well(
    on: str, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it starts, as its settings are verified, as it is prepared for weights, and with either half of the probe."""
    harmed: list[str] = []

    def kill() -> None:
        EngineProcess(0).server.kill()
        harmed.append(on)

    async def wait(learner: LearnerClient) -> None:
        await until(lambda: "engine-0" in engines_said(tmp_path, "serves again"))

    with ExitStack() as stack:
        plan = FaultPlan(Fault("slow", on=on, nth=(0,), match=once(kill)))
        engines = [stack.enter_context(engine_beside(tiny_model, script=None, faults=each)) for each in (plan, None)]
        acts = Acts({("saving", 4): wait})
        assert run(tiny_model, tmp_path, engines, acts, managed=True).steps == 4
        assert (harmed, acts.left) == ([on], {})
    said = capsys.readouterr().out
    proven = re.findall(r"^  (engine-\d), version 0: mean", said, re.MULTILINE)
    assert proven == ["engine-1"], "of the other nothing is said"
    left = re.findall(r"^engine (engine-\d) left: ", said, re.MULTILINE)
    assert left[0] == "engine-0", "which is said as the steps begin"
    check_history(tmp_path, 4)


def test_engines_that_all_fail_as_they_start_end_the_run_and_say_why(tiny_model: Path, tmp_path: Path) -> None:
    def killing(index: int) -> FaultPlan:
        return FaultPlan(Fault("slow", nth=(0,), match=once(lambda: HARM["killed"](EngineProcess(index)))))

    with ExitStack() as stack:
        plans = [killing(index) for index in (0, 1)]
        engines = [stack.enter_context(engine_beside(tiny_model, script=None, faults=plan)) for plan in plans]
        with pytest.raises(EngineError, match=r"engine-0 ended with exit code 137; last lines of .*engine-0\.log"):
            run(tiny_model, tmp_path, engines, managed=True)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_engines_that_fail_while_a_checkpoint_is_saved_come_back(tiny_model: Path, tmp_path: Path) -> None:
    """All at once, and each in another way; again in the last checkpoint, after which nothing is generated. While a
    version is published, which [7] has for others, it is a guardian."""
    faults = FaultPlan(
        Fault("slow", on=UPDATE, nth=(3,), match=once(lambda: HARM["guardian killed"](EngineProcess(0))))
    )

    async def harm(learner: LearnerClient) -> None:
        await until(lambda: len(engines_said(tmp_path, "serves again")) >= 1)  # what failed in the publish
        before = len(engines_said(tmp_path, "serves again"))
        for index, kind in enumerate(HARM):
            HARM[kind](EngineProcess(index))
        await until(lambda: {*engines_said(tmp_path, "serves again")[before:]} == {"engine-0", "engine-1", "engine-2"})

    with ExitStack() as stack:
        engines = [
            stack.enter_context(engine_beside(tiny_model, script=None, faults=plan)) for plan in (faults, None, None)
        ]
        acts = Acts({("saving", 2): harm, ("saving", 4): harm})
        outcome = run(tiny_model, tmp_path, engines, acts, managed=True)
        assert acts.left == {}
        assert (outcome.steps, outcome.interrupted) == (4, False)
        check_history(tmp_path, 4)


def test_engines_that_are_all_gone_end_the_run_until_the_last_checkpoint_is_saved(
    tiny_model: Path, tmp_path: Path
) -> None:
    async def kill_all(learner: LearnerClient) -> None:
        for index in range(2):
            EngineProcess(index).server.kill()

    async def kill_all_and_wait(learner: LearnerClient) -> None:
        await kill_all(learner)
        await until(lambda: False)

    no_restarts = {"engines": {"max_restarts": 0}, "training": {"max_steps": 3}}
    with ExitStack() as stack:
        engines = [stack.enter_context(engine_beside(tiny_model, script=None)) for _ in range(2)]
        for saved in (1, 2):
            acts = Acts({("saving", 2): after_checkpoint(tmp_path, saved, kill_all_and_wait)})
            with pytest.raises(EngineError, match=r"no engine is left\nengine-\d: engine-\d ended with exit code 137"):
                run(tiny_model, tmp_path, engines, acts, managed=True, **no_restarts)
            assert acts.left == {}
        acts = Acts({("ending", 1): kill_all})
        outcome = run(tiny_model, tmp_path, engines, acts, managed=True, **no_restarts)
        assert acts.left == {}
        assert (outcome.steps, outcome.interrupted) == (3, False)
    check_history(tmp_path, 3)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (Fault("status", status=400, text="no such sampler"), EngineError, "no such sampler"),
        (Fault("disconnect"), EngineError, "the server closed the connection before its answer"),
        (Fault("status", on=UPDATE, status=400, text="no such folder"), PublishError, "no such folder"),
        (
            Fault("disconnect", on=UPDATE),
            PublishError,
            "to engine-0 failed: .*Server disconnected",
        ),
    ],
    ids=["400", "disconnect", "400 to a load", "disconnect in a load"],
)
def test_what_an_engine_answers_while_weights_are_proven_ends_the_run(
    fault: Fault, kind: type[AsyncGRPOError], words: str, tiny_model: Path, tmp_path: Path
) -> None:
    with engine_beside(tiny_model, script=None, faults=FaultPlan(fault)) as engine:
        with pytest.raises(kind, match=words):
            run(tiny_model, tmp_path, [engine])
        assert engine.calls(fault.on) != []
        assert fault.on == GENERATE or engine.calls(GENERATE) == []


def test_an_engine_with_foreign_weights_is_given_the_current_version_while_a_checkpoint_is_saved(
    engine: FakeEngine, tiny_model: Path, tmp_path: Path
) -> None:
    """Somebody started it anew at the same address; nothing that it samples by them is trained."""

    async def start_anew(learner: LearnerClient) -> None:
        before = len(engines_said(tmp_path, "serves again"))
        engine.core.version = "other:7"
        engine.model.scramble()
        await until(lambda: len(engines_said(tmp_path, "serves again")) > before)
        assert engine.core.version.partition(":")[0] == (tmp_path / "run" / "incarnation").read_text().strip()

    acts = Acts({("saving", 2): start_anew, ("saving", 4): start_anew})
    looks, slow = {"health_interval": 0.1}, {"learning_rate": 1e-6}
    outcome = run(tiny_model, tmp_path, [engine], acts, engines=looks, training=slow)
    assert acts.left == {}
    assert (outcome.steps, outcome.interrupted) == (4, False)
    assert max(step["policy_kl_nats/behaviour_current"] for step in Run(tmp_path).steps) < 1e-3
    check_history(tmp_path, 4)


def test_a_killed_guardian_of_the_snapshots_is_replaced_at_any_stage(
    engine: FakeEngine, tiny_model: Path, tmp_path: Path
) -> None:
    killed: list[psutil.Process] = []

    async def kill(learner: LearnerClient) -> None:
        (guardian,) = snapshots_guardians()
        assert guardian not in killed
        guardian.kill()
        killed.append(guardian)

    acts = Acts({("proving", 2): kill, ("saving", 1): kill, ("ending", 1): kill})
    assert run(tiny_model, tmp_path, [engine], acts).steps == 4
    assert acts.left == {}
    assert len(killed) == 3
    check_history(tmp_path, 4)
