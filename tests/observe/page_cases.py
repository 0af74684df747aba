"""A run folder as a run of some steps leaves it, made in milliseconds and the same every time."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asyncgrpo.observe.evaluations import append_evaluation
from asyncgrpo.observe.recorder import Recorder
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.types import Completion, Group, Prompt, Sample

START = 1_796_000_000.0
STEP_SECONDS = 20.0
HOSTILE = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>\x1b[2J\u202e</script><!--"
"""Of a completion, a prompt, a reward's name and a warning."""


def record(step: int, reward: float | None = None) -> dict[str, Any]:
    """Of a run that learns, with bursts of staleness."""
    noise = random.Random(step)
    mean = 1.2 - 2.0 * math.exp(-step / 12) + noise.gauss(0, 0.08) if reward is None else reward
    fresh = 900 + noise.randrange(200)
    return {
        "step": step,
        "version": step - 1,
        "time": START + STEP_SECONDS * step,
        "groups": 4,
        "reward_mean": mean,
        "reward_stddev": 0.4,
        "reward_standard_error": 0.1,
        "reward_mean/length": mean / 2,
        "reward_mean/correct": mean * 1.2,
        "staleness_mean": 0.6,
        "staleness_max": 1 + step % 3,
        "staleness_tokens/0": fresh,
        "staleness_tokens/1": 700,
        **({"staleness_tokens/2": 150, "staleness_tokens/3": 40} if step % 3 == 2 else {}),
        "policy_entropy_nats": 2.4 * math.exp(-step / 60),
        "policy_kl_nats/behaviour_proximal": 1e-4 * (1 + step % 7),
        "policy_kl_nats/behaviour_current": 2e-3 * (1 + step % 5),
        "generated_tokens_per_second": 160.0 + noise.gauss(0, 10),
        "trained_tokens_per_second": 150.0,
        "generated_while_training_ratio": 0.55,
        "generation_idle_ratio": 0.1,
        "step_seconds": STEP_SECONDS,
        "waiting_seconds": 5.0,
        "training_seconds": 13.0,
        "snapshot_seconds": 1.0,
        "publish_seconds": 1.4,
        "completion_tokens_mean": 14.0,
        "completion_tokens_min": 3,
        "completion_tokens_max": 16,
        "truncated_ratio": 0.4,
        "uniform_groups_ratio": 0.25,
        "gradient_norm": 2.0 + noise.random(),
        "loss": 0.05,
        "learner/ratio/mean": 1.0,
        "verdict": "training-bound",
    }


def sample(
    text: str, reward: float, versions: Sequence[int], sampled: Sequence[bool] | None = None, **names: Any
) -> Sample:
    count = len(versions)
    marks = [True] * count if sampled is None else sampled
    return Sample(
        completion=Completion(
            token_ids=tuple(10 + i for i in range(count)),
            behaviour_logprobs=tuple(-0.25 * (i % 9) * marks[i] for i in range(count)),
            versions=tuple(versions),
            sampled=sampled,  # type: ignore[arg-type]
            finish_reason="stop",
            engine="engine-0",
            started_at=1.0,
            finished_at=3.5,
        ),
        text=text,
        rewards=names.get("rewards", {"length": reward, "correct": reward}),
        reward=reward,
    )


def group(group_id: int, prompt: Any, samples: Sequence[Sample]) -> Group:
    return Group(
        group_id=group_id,
        prompt=Prompt(prompt_id=f"0-{group_id}", epoch=0, row=group_id, prompt=prompt, token_ids=(1, 2)),
        samples=tuple(samples),
        start_version=0,
        admitted_at=1.0,
        entered_at=4.0,
    )


def write_step(folder: RunFolder, step: int) -> None:
    """Two groups: a chat, and one that would like to be markup. And one that was dropped."""
    version = step - 1
    old = max(0, version - 1)
    chat = [{"role": "system", "content": "You repeat numbers."}, {"role": "user", "content": f"Repeat: {step}, 2, 3."}]
    turns = [True] * 4 + [False] * 3 + [True] * 3
    groups = [
        group(10 * step, chat, [sample("1, 2, 3", 1.0, [old] * 4 + [version] * 3), sample("no", -1.0, [version] * 3)]),
        group(
            10 * step + 1,
            f"Say {HOSTILE}",
            [
                sample(HOSTILE, 0.5, [version] * 10, turns, rewards={HOSTILE: 0.5, "length": 1.0}),
                sample("", 0.0, []),
            ],
        ),
    ]
    dropped = group(10 * step + 2, "slow", [sample("late", 0.1, [old])])
    advantages, proximal = [1.0, -1.0, 0.5, -0.5], np.linspace(-2.0, 0.0, 20)
    Recorder(folder).write_rollouts(step, version, groups, advantages, [(dropped, "dropped:stale")], proximal)


def write_spans(folder: RunFolder, steps: int, engines: int = 2) -> None:
    """Of every step: the learner waits, trains and writes a snapshot; engines load it one after the other."""
    lines: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        at = START + STEP_SECONDS * (step - 1)
        for state, start, end in (("waiting", 0, 5), ("training", 5, 18), ("snapshot", 18, 19), ("waiting", 19, 20)):
            lines.append({"lane": "learner", "state": state, "from": at + start, "to": at + end, "step": step})
        for number in range(engines):
            begun = at + 19 + 0.7 * number
            lines.append(
                {"lane": f"engine-{number}", "state": "publishing", "from": begun, "to": begun + 0.7, "step": step}
            )
        for second in range(0, 20, 2):
            requests = {f"engine-{number}": max(0, 16 - second - 3 * number) for number in range(engines)}
            flow = {"in_flight": 4 - second // 6, "buffered": second // 6, "slots_held": 8}
            lines.append({"at": at + second, "learner": "waiting", **flow, "requests": requests})
    folder.spans_file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def evaluation(step: int, reward: float) -> dict[str, Any]:
    return {
        "step": step,
        "time": START + STEP_SECONDS * step,
        "error": None,
        "version_min": step,
        "version_max": step,
        "samples_per_prompt": 4,
        "reward_mean": reward,
        "reward_standard_error": 0.12,
        "prompt_rewards": [reward] * 1000,
    }


def write_run(path: Path, steps: int = 24, rollouts: Sequence[int] = (1, 2, 24)) -> RunFolder:
    folder = RunFolder(path)
    for directory in (folder.path, folder.rollouts_dir, folder.logs_dir):
        directory.mkdir(parents=True)
    recorder = Recorder(folder)
    for step in range(1, steps + 1):
        recorder.append_step(record(step))
    for step in rollouts:
        write_step(folder, step)
    for step in range(0, steps + 1, 8):
        append_evaluation(folder.evaluation_file, evaluation(step, -0.7 + step / 16))
    write_spans(folder, steps)
    folder.config_file.write_text(CONFIG.format(steps=steps))
    folder.log_file.write_text(LOG)
    return folder


CONFIG = """\
run:
  output_dir: runs/demo            # run.yaml:1
  seed: 42                         # default

training:
  max_steps: {steps}               # command line
  learning_rate: 1e-06             # default
"""

LOG = f"""\
2026-11-30T01:10:45.007Z INFO step=1 version=0 asyncgrpo.orchestrator: version 1 published
2026-11-30T01:11:04.141Z WARNING step=2 version=1 asyncgrpo.alarms: step 2, guard mismatch: {HOSTILE}
2026-11-30T01:11:05.141Z WARNING step=3 version=2 asyncgrpo.meter: tokens of engine-0 are not known
2026-11-30T01:11:06.141Z WARNING step=4 version=3 asyncgrpo.meter: tokens of engine-0 are not known
2026-11-30T01:12:04.141Z INFO step=- version=- asyncgrpo.launch: the run failed
Traceback (most recent call last):
asyncgrpo.errors.StallError: step 5: waiting for groups
2026-11-30T01:12:05.141Z INFO step=- version=- asyncgrpo.launch: something later
"""
