"""Runs with held-out prompts whose rewards are known by hand: the completion's first token says whether it passes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from run_cases import HERE, first_token, mean_token, run_config

from asyncgrpo.observe.evaluations import read_evaluations
from asyncgrpo.preflight import Job, prepare
from asyncgrpo.rewards.functions import from_callables

GOOD, BAD = 150, 151
TRAINED, HELD_OUT = 5, 3
"""Tokens of a completion."""


def data(count: int = 8) -> list[dict[str, Any]]:
    return [{"prompt": f"s{i}", "scale": 0.01} for i in range(count)]


def held_out_rows(*names: str) -> list[dict[str, Any]]:
    """One per name; `e3` passes in 3 of 4 samples, under `PassesInTurn`."""
    return [{"prompt": name, "scale": 1.0} for name in names]


class PassesInTurn:
    """A fake engine's script. A training prompt is always answered alike; of 4 samples of `e<c>`, c are GOOD, whichever
    come first."""

    def __init__(self) -> None:
        self.asked: dict[tuple[int, ...], int] = {}

    def __call__(self, prompt: tuple[int, ...], rng: random.Random) -> Sequence[int]:
        if prompt[0] != first_token("e"):
            return [100 + (7 * sum(prompt) + i) % 50 for i in range(TRAINED)]
        turn = self.asked[prompt] = self.asked.get(prompt, -1) + 1
        passing = int(bytes_of(prompt[1:]))
        return [GOOD if turn % 4 < passing else BAD] * HELD_OUT


def bytes_of(tokens: Sequence[int]) -> str:
    from asyncgrpo.testing.tiny import make_tokenizer

    return str(make_tokenizer().decode(tokens))


def is_good(completion_ids: Sequence[Sequence[int]], scale: Sequence[float], **_: Any) -> list[float]:
    """1 for what passes; of training completions, their mean token, which differs between prompts only."""
    if scale[0] == 1.0:
        return [float(ids[0] == GOOD) for ids in completion_ids]
    return mean_token(completion_ids, scale)


def config_of(model: Path, folder: Path, urls: Sequence[str] = (), **sections: Any) -> Any:
    base: dict[str, Any] = {
        "generation": {"num_generations": 4, "max_completion_length": 12, "request_timeout": 20.0},
        "buffer": {"max_staleness": 1, "stall_timeout": 60.0},
        "training": {"max_steps": 4, "groups_per_step": 2, "learning_rate": 1e-3},
        "evaluation": {"eval_steps": 2, "timeout": 30.0},
    }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    return run_config(model, folder, urls, **base)


def job_of(config: Any, eval_rows: Any, *, reward: Any = is_good, rows: Any = None, from_config: bool = False) -> Job:
    """from_config: training rows are those that the configuration names."""
    rows = None if from_config else data() if rows is None else rows
    return prepare(config, rows=rows, rewards=from_callables(reward), eval_rows=eval_rows, machine=HERE)


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return read_evaluations(folder / "run" / "evaluation.jsonl")
