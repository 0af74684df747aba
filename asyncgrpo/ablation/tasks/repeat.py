"""Repeating four numbers, as the quickstart trains it: what a small instruct model rarely does at first."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncgrpo.errors import ConfigError

NUMBERS = 4
MOST = 9 * 8 * 7 * 6
"""Ways to draw four of nine numbers in order."""


def prepare(folder: Path, seed: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Prompts to train and others to evaluate on. options: `prompts`, `held_out`: how many of each.

    Raises ConfigError for options that there are not, or more prompts than there are tasks.
    """
    if unknown := sorted({*options} - {"prompts", "held_out"}):
        raise ConfigError(f"prepare.options has {unknown}, and this task prompts and held_out; leave the others out")
    prompts, held_out = int(options.get("prompts", 256)), int(options.get("held_out", 64))
    if prompts + held_out > MOST:
        raise ConfigError(f"prepare.options: {prompts + held_out} prompts, and there are {MOST}; ask for fewer")
    draw, drawn = random.Random(seed), dict[tuple[int, ...], None]()
    while len(drawn) < prompts + held_out:
        drawn[tuple(draw.sample(range(1, 10), NUMBERS))] = None
    all_numbers = list(drawn)
    files = {"train": all_numbers[:prompts], "held_out": all_numbers[prompts:]}
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(_row(row))}\n" for row in rows), encoding="utf-8")
    return {
        "data.dataset": str(folder / "train.jsonl"),
        "evaluation.dataset": str(folder / "held_out.jsonl"),
    }


def _row(numbers: Sequence[int]) -> dict[str, Any]:
    question = f"Repeat these numbers: {', '.join(map(str, numbers))}."
    messages = [{"role": "system", "content": "Answer with numbers."}, {"role": "user", "content": question}]
    return {"prompt": messages, "answer": list(numbers)}
