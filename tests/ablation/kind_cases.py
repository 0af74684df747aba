"""Runs of the kinds `injected` and `bits` that take a second: an untrained tiny model, which has something to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from asyncgrpo.ablation.design.arms import Run, arms_of, runs_of
from asyncgrpo.ablation.design.reading import study_from_json
from asyncgrpo.ablation.kinds.injected import Injected
from asyncgrpo.ablation.tasks.reverse import Options, distinct_prompts, make_tokenizer, untrained, write_rows

DIGITS = 3
BASE: dict[str, Any] = {
    "model": {"attn_implementation": "sdpa"},
    "data": {"shuffle_dataset": True},
    "generation": {"num_generations": 4, "max_completion_length": DIGITS},
    "engines": {"devices": ["cpu"], "dtype": "float32"},
    "learner": {"mode": "inline", "devices": ["cpu"]},
    "rewards": [{"path": "asyncgrpo.ablation.tasks.reverse:right_digits"}],
    "training": {"groups_per_step": 4, "num_minibatches": 2, "learning_rate": 3e-3},
    "evaluation": {"temperature": 0},
}


def start(folder: Path) -> dict[str, Any]:
    """Settings that name a model and rows."""
    options = Options(digits=DIGITS, width=16, layers=1, heads=2)
    rows = distinct_prompts(np.random.default_rng(0), 40, DIGITS)
    untrained(0, options).save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    write_rows(folder / "train.jsonl", rows[:24])
    write_rows(folder / "held_out.jsonl", rows[24:])
    return {
        "model.path": str(folder / "model"),
        "data.dataset": str(folder / "train.jsonl"),
        "evaluation.dataset": str(folder / "held_out.jsonl"),
    }


def make_run(
    settings: dict[str, Any],
    *,
    kind: str = "injected",
    base: dict[str, Any] | None = None,
    seed: int = 0,
    stream: int = 0,
    steps: int = 4,
) -> Run:
    factors = {"only": {"arm": settings}}
    controls = {"aa": {"only": "arm"}} if stream else {}
    study = study_from_json(
        {
            "study": {"name": "case", "question": "Does it?", "kind": kind},
            "base": BASE if base is None else base,
            "factors": factors,
            "controls": controls,
            "seeds": [seed],
            "budget": {"steps": steps},
            "evaluate_every": 2,
        }
    )
    return runs_of(study, arms_of(study))[-1]


def injected(settings: dict[str, Any], **more: Any) -> Injected:
    return Injected(make_run(settings, **more))
