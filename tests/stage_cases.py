"""Short runs that do something, such as killing a process of theirs, at exactly the moment that a test names.

A moment is a call to the learner, by what the run is at and how often it was there: `("saving", 2)` is that it has
begun its second checkpoint. What happens there is awaited before the learner is asked, so a run stands still in it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psutil
from run_cases import engine_beside, make_job, mean_token, run_config

from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import from_python
from asyncgrpo.config.render import render_config
from asyncgrpo.launch import Outcome, run_job
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.types import Batch, Snapshot, StepReport

RELAY = "asyncgrpo.testing.relay"
PATIENCE_SECONDS = 60.0

Stage = Literal["starting", "proving", "training", "publishing", "saving", "ending"]
"""starting: engines and learner. proving: snapshots before the first step. ending: the final model is saved."""
Act = Callable[[LearnerClient], Awaitable[None]]


class Acts:
    """What is to happen, each at its moment, once. `left`: what is still to come."""

    def __init__(self, acts: Mapping[tuple[Stage, int], Act]) -> None:
        self.left = dict(acts)
        self._seen: Counter[Stage] = Counter()

    async def reached(self, stage: Stage, learner: LearnerClient) -> None:
        self._seen[stage] += 1
        act = self.left.pop((stage, self._seen[stage]), None)
        if act is not None:
            await act(learner)


class StagedLearner(LearnerClient):
    def __init__(self, config: RunConfig, log_dir: str | os.PathLike[str], acts: Acts) -> None:
        super().__init__(config, log_dir)
        self._acts = acts
        self._has_trained = False

    async def start(self) -> None:
        await self._acts.reached("starting", self)
        await super().start()

    async def train(self, batch: Batch) -> StepReport:
        self._has_trained = True
        await self._acts.reached("training", self)
        return await super().train(batch)

    async def write_snapshot(self, path: str, version: int, perturbation: int | None = None) -> Snapshot:
        await self._acts.reached("publishing" if self._has_trained else "proving", self)
        return await super().write_snapshot(path, version, perturbation)

    async def save(self, directory: str | os.PathLike[str]) -> int:
        await self._acts.reached("saving", self)
        return await super().save(directory)

    async def save_model(self, directory: str) -> None:
        await self._acts.reached("ending", self)
        await super().save_model(directory)


def run(
    model: Path,
    folder: Path,
    fakes: Sequence[FakeEngine],
    acts: Acts | None = None,
    *,
    managed: bool = False,
    reward: Any = mean_token,
    **sections: Any,
) -> Outcome:
    """Four steps, each saved. managed: every fake has a process before it, which the run starts and looks after."""
    base: dict[str, Any] = {
        "run": {"seed": 0},  # which says what backend an engine has
        "generation": {"num_generations": 4, "max_completion_length": 12, "request_timeout": 20.0},
        "buffer": {"max_staleness": 1, "stall_timeout": 60.0},
        "training": {"max_steps": 4, "groups_per_step": 2, "learning_rate": 1e-3},
        "checkpoint": {"save_steps": 1},
    }
    ports = ",".join(str(engine.port) for engine in fakes)
    if managed:
        base["engines"] = {
            "devices": ["cpu"] * len(fakes),
            "extra_args": ["--backends", ports],
            "stop_timeout": 1.0,
            "health_interval": 0.2,
            "control_timeout": 2.0,
            "max_restarts": 50,
        }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    urls = [] if managed else [engine.url for engine in fakes]
    job = make_job(run_config(model, folder, urls, **base), reward=reward)
    acts = acts or Acts({})
    return run_job(
        job,
        config_text=render_config(from_python(job.config, ())),
        engine_module=RELAY,
        make_learner=lambda config, log_dir: StagedLearner(config, log_dir, acts),
    )


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():  # noqa: ASYNC110  (threads and processes make it so)
            await asyncio.sleep(0.01)


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "run" / "checkpoints" / f"step-{step:08d}"


def after_checkpoint(folder: Path, step: int, act: Act) -> Act:
    """What is written beside the next step has come to its end."""

    async def later(learner: LearnerClient) -> None:
        await until(checkpoint(folder, step).is_dir)
        await act(learner)

    return later


async def kill_rank(learner: LearnerClient) -> None:
    """While it is at what it is asked next."""
    rank = psutil.Process(*learner.pids)
    rank.suspend()
    asyncio.get_running_loop().call_later(0.1, rank.kill)


def hang_rank(seconds: float) -> Act:
    """At what it is asked next, for longer than a deadline, but not for so long that it has to be killed."""

    async def hang(learner: LearnerClient) -> None:
        rank = psutil.Process(*learner.pids)
        rank.suspend()
        asyncio.get_running_loop().call_later(seconds, rank.resume)

    return hang


async def kill_orchestrator(learner: LearnerClient) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def engines_said(folder: Path, what: str) -> list[str]:
    """Engines of which the log says it, in order."""
    return re.findall(rf"(engine-\d) {what}", (folder / "run" / "logs" / "orchestrator.log").read_text())


class EngineProcess:
    """The process before a fake engine, and its guardian; of the run that is under way."""

    def __init__(self, index: int, seed: int = 0) -> None:
        found = {is_guardian: process for process, is_guardian in _relays(seed + index)}
        self.server, self.guardian = found[False], found[True]


def _relays(seed: int) -> list[tuple[psutil.Process, bool]]:
    """Of one engine, each with whether it is the guardian."""
    found = []
    for process, words in _children():
        if RELAY in words and words[words.index("--seed") + 1] == str(seed):
            found.append((process, "asyncgrpo.guardian" in words))
    return found


def snapshots_guardians() -> list[psutil.Process]:
    """Living ones: that remove a folder and look after no command, as those of confined rewards do."""
    return [process for process, words in _children() if "--remove" in words and "--" not in words]


def rank_processes() -> list[psutil.Process]:
    return [process for process, words in _children() if "asyncgrpo.learning.rank" in words]


def _children() -> list[tuple[psutil.Process, list[str]]]:
    """Living processes below this one, each with its command line."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append((process, process.cmdline()))
    return found


def killed_at(model: Path, folder: Path, moments: Sequence[tuple[Stage, int, int]], **sections: Any) -> list[int]:
    """Start a run, kill it at the first moment, start it again, and so on; a moment also names the newest checkpoint
    that is complete by then, 0 for none. How each start ended: -9, if by the kill."""
    import datasets  # noqa: F401  (as the others: what every start would import for itself)
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    import asyncgrpo.learning.learner
    import asyncgrpo.learning.rank  # noqa: F401

    ends = []
    for stage, number, saved in moments:
        kill = after_checkpoint(folder, saved, kill_orchestrator) if saved else kill_orchestrator
        child = os.fork()  # nothing has computed in this process, and no thread runs
        if child == 0:
            try:
                with engine_beside(model, script=None) as engine:
                    run(model, folder, [engine], Acts({(stage, number): kill}), **sections)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        ends.append(os.waitstatus_to_exitcode(status))
    return ends


if __name__ == "__main__":
    print(
        json.dumps(killed_at(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), **json.loads(sys.argv[4])))
    )
