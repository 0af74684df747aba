"""Predicted against measured runs: does `asyncgrpo plan` tell the truth about runs that it has not seen?

One run is recorded and fitted. From it the other runs, with another max_staleness, max_unfinished_groups or learner,
are predicted before they happen; then they happen. Runs are real in everything but the model: the orchestrator, the
buffer, the publisher, and fake engines over HTTP whose decode steps take real time. The learner trains the tiny model
and then sleeps until its step has taken as long as the setting says.

The first steps, until the buffer is full, are left out of measurement and prediction alike; predictions are means over
several simulated runs. Needs two cores that do little else, and about ten minutes (--quick: three).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import from_python
from asyncgrpo.config.render import render_config
from asyncgrpo.config.resolve import Machine
from asyncgrpo.observe.files import write_text
from asyncgrpo.observe.progress import Progress
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.orchestrator import Orchestrator
from asyncgrpo.planning.fitting import fit
from asyncgrpo.planning.model import RunModel
from asyncgrpo.planning.recorded import Recording, read_recording
from asyncgrpo.planning.simulator import simulate
from asyncgrpo.preflight import prepare
from asyncgrpo.rewards.functions import from_callables
from asyncgrpo.session import open_session, prove_weights
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.fake_model import FakeModel
from asyncgrpo.testing.tiny import make_tiny_model

GROUPS, GENERATIONS, ENGINES, MAX_NUM_SEQS = 4, 4, 2, 8
MEAN_TOKENS, SIGMA, LONGEST = 24, 0.6, 80
TOKEN_SECONDS = 0.03
SEEDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    max_staleness: int
    max_unfinished_groups: int | None
    train_seconds: float

    def __str__(self) -> str:
        w = self.max_unfinished_groups
        return f"S={self.max_staleness} W={'-' if w is None else w} train={self.train_seconds:g}s"


RECORDED = Setting(max_staleness=1, max_unfinished_groups=None, train_seconds=0.8)
SETTINGS = [
    Setting(max_staleness=s, max_unfinished_groups=w, train_seconds=t)
    for s, w, t in (
        (0, None, 0.8),
        (1, None, 0.3),
        (1, None, 2.0),
        (2, None, 1.1),
        (4, None, 0.5),
        (4, None, 2.0),
        (2, 6, 2.0),
        (4, 8, 0.5),
        (4, 8, 2.0),
        (4, 12, 1.1),
        (4, 4, 0.8),
    )
]


class StillModel(FakeModel):
    """Every token is as likely as any other, which costs next to nothing: an engine's pace is then its clock's."""

    def distributions(
        self, contexts: Sequence[Sequence[int]], temperatures: Sequence[float]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = torch.full((1, self.vocab_size), -math.log(self.vocab_size)).expand(len(contexts), -1)
        return logprobs, logprobs


class PacedLearner:
    """A learner whose steps take `seconds`, the tiny model's own time included."""

    def __init__(self, learner: Any, seconds: float) -> None:
        self._learner, self._seconds = learner, seconds

    async def train(self, batch: Any) -> Any:
        started = time.monotonic()
        report = await self._learner.train(batch)
        await asyncio.sleep(max(0.0, self._seconds - (time.monotonic() - started)))
        return report

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)


def script(prompt: tuple[int, ...], rng: random.Random) -> Sequence[int]:
    """Random text of a lognormal length."""
    length = min(LONGEST, max(1, round(rng.lognormvariate(0.0, SIGMA) * MEAN_TOKENS)))
    return [rng.randrange(100, 250) for _ in range(length)]


def reward(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [sum(ids) / len(ids) / 100 for ids in completion_ids]


def still_engine(model: Path, seed: int) -> FakeEngine:
    engine = FakeEngine(model, script=script, token_seconds=TOKEN_SECONDS, max_num_seqs=MAX_NUM_SEQS, seed=seed)
    engine.model = StillModel(model)
    return engine


async def run(setting: Setting, model: Path, folder: Path, steps: int) -> Path:
    """One run; returns its folder."""
    (folder / "shm").mkdir(parents=True)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(still_engine(model, number)) for number in range(ENGINES)]
        config = configuration(setting, model, folder, [engine.url for engine in engines], steps)
        rows = [{"prompt": f"{number}+1="} for number in range(64)]
        machine = Machine(cores=tuple(sorted(os.sched_getaffinity(0))), gpus=(), fast_bf16=False)
        job = prepare(config, rows=rows, rewards=from_callables(reward), machine=machine)
        run_folder = stack.enter_context(RunFolder.create(config.run.output_dir))
        write_text(run_folder.config_file, render_config(from_python(job.config, ())))
        progress = stack.enter_context(Progress(steps, stream=io.StringIO()))
        session = await stack.enter_async_context(open_session(job, run_folder, progress))
        await prove_weights(session)
        session = replace(session, learner=PacedLearner(session.learner, setting.train_seconds))  # type: ignore[arg-type]
        await Orchestrator(session).run()
    return run_folder.path


def configuration(setting: Setting, model: Path, folder: Path, urls: Sequence[str], steps: int) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": {"output_dir": str(folder / "run")},
            "model": {"path": str(model)},
            "generation": {"num_generations": GENERATIONS, "max_completion_length": LONGEST},
            "engines": {"urls": urls, "dtype": "float32", "max_num_seqs": MAX_NUM_SEQS,
                        "max_concurrent_requests": "unlimited"},
            "learner": {"mode": "inline", "devices": ["cpu"]},
            "training": {"max_steps": steps, "groups_per_step": GROUPS, "num_train_epochs": 1000.0},
            "weights": {"shared_memory_dir": str(folder / "shm"), "probe": False},
            "buffer": {
                "max_staleness": setting.max_staleness,
                "max_unfinished_groups": setting.max_unfinished_groups,
                "stall_timeout": 120.0,
            },
        }
    )  # fmt: skip


def measured(recording: Recording, first: int) -> dict[str, float]:
    """Means over the steps from `first` on."""
    steps = recording.steps[first:]
    seconds, tokens = sum(step["step_seconds"] for step in steps), sum(step["tokens_trained"] for step in steps)
    return {
        "step_seconds": seconds / len(steps),
        "tokens_per_second": tokens / seconds,
        "staleness": sum(step["staleness_mean"] * step["tokens_trained"] for step in steps) / tokens,
        "waiting_ratio": sum(step["waiting_seconds"] for step in steps) / seconds,
    }


def predicted(model: RunModel, steps: int, first: int) -> dict[str, float]:
    means = [simulate(model, steps, seed).means(first) for seed in range(SEEDS)]
    names = ("step_seconds", "tokens_per_second", "staleness", "waiting_ratio")
    return {name: statistics.fmean(getattr(mean, name) for mean in means) for name in names}


def of(setting: Setting, fitted: RunModel) -> RunModel:
    """The fitted model under another setting: what changes is known, what stays was measured."""
    slower = setting.train_seconds - RECORDED.train_seconds
    learner = replace(fitted.learner, step_seconds=fitted.learner.step_seconds + slower)
    model = replace(fitted, learner=learner)
    return model.with_policy(max_staleness=setting.max_staleness, max_unfinished_groups=setting.max_unfinished_groups)


def compare(setting: Setting, fitted: RunModel, folder: Path, first: int) -> dict[str, Any]:
    recording = read_recording(folder)
    steps, seen = len(recording.steps), measured(recording, first)
    said = predicted(of(setting, fitted), steps, first)
    own = predicted(fit(read_recording(folder, first_steps=first)), steps, first)
    figures: dict[str, Any] = {"setting": str(setting), "measured": seen, "predicted": said, "predicted_from_own": own}
    for name, prediction in (("", said), ("_from_own", own)):
        figures[f"staleness_error{name}"] = abs(prediction["staleness"] - seen["staleness"])
        figures[f"throughput_error{name}"] = abs(prediction["step_seconds"] / seen["step_seconds"] - 1)
    return figures


def line(figures: Mapping[str, Any]) -> str:
    seen, said, own = figures["measured"], figures["predicted"], figures["predicted_from_own"]
    return (
        f"{figures['setting']:22} step {seen['step_seconds']:6.3f} s  {said['step_seconds']:6.3f}  "
        f"{own['step_seconds']:6.3f}   staleness {seen['staleness']:5.2f}  {said['staleness']:5.2f}  "
        f"{own['staleness']:5.2f}   waiting {seen['waiting_ratio']:4.0%}  {said['waiting_ratio']:4.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="steps of a run")
    parser.add_argument("--quick", action="store_true", help="14 steps: shows that the script works")
    parser.add_argument("--settings", type=int, default=len(SETTINGS), help="run only so many")
    arguments = parser.parse_args()
    steps = 14 if arguments.quick else arguments.steps
    first = min(8, steps // 2)
    # The engines' log-probabilities are made up, which is warned of in every step.
    logging.getLogger("asyncgrpo").setLevel(logging.ERROR)
    results = []
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        model = make_tiny_model(base / "model", seed=0)
        psutil.cpu_percent()
        recorded = asyncio.run(run(RECORDED, model, base / "recorded", steps))
        fitted = fit(read_recording(recorded))
        print(f"recorded {RECORDED}: {fitted.engines}, {fitted.learner}, mean {fitted.lengths.mean:.1f} tokens")
        print("each figure: measured, predicted from the recorded run, predicted from the run's own first steps")
        for number, setting in enumerate(SETTINGS[: arguments.settings]):
            folder = asyncio.run(run(setting, model, base / str(number), steps))
            results.append(compare(setting, fitted, folder, first))
            print(line(results[-1]), flush=True)
    print(
        json.dumps(
            {
                "staleness_error_max": max(result["staleness_error"] for result in results),
                "throughput_error_max": max(result["throughput_error"] for result in results),
                "staleness_error_max_from_own": max(result["staleness_error_from_own"] for result in results),
                "throughput_error_max_from_own": max(result["throughput_error_from_own"] for result in results),
                "cpu_busy": psutil.cpu_percent() / 100,
                "steps": steps,
                "settings": results,
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
