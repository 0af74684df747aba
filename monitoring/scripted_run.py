"""A short run on a tiny model and two fake engines, in which as much as possible happens: to look at, and for tests.

python monitoring/scripted_run.py FOLDER TARGETS [--steps 40]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from asyncgrpo.config import RunConfig
from asyncgrpo.launch import run_job
from asyncgrpo.preflight import Job, prepare
from asyncgrpo.rewards.functions import from_callables
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.tiny import make_tiny_model

NAME = "scripted"
TOKEN_SECONDS = 0.01


def letters(
    completions: Sequence[str], counts: Sequence[float], log_metric: Callable[[str, float], None], **columns: Any
) -> list[float]:
    """Share of a completion that is made of small letters; prompts that do not count teach nothing."""
    log_metric("characters", sum(map(len, completions)) / len(completions))
    return [counts[0] * sum("a" <= character <= "z" for character in text) / max(len(text), 1) for text in completions]


def has_vowel(completions: Sequence[str], counts: Sequence[float], **columns: Any) -> list[float]:
    return [counts[0] * any(vowel in text for vowel in "aeiou") for text in completions]


@contextmanager
def engine(model: Path, seed: int) -> Iterator[str]:
    """URL of a fake engine on a thread of its own."""
    started: list[str] = []
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with FakeEngine(model, token_seconds=TOKEN_SECONDS, seed=seed, records=False) as fake:
            started.append(fake.url)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        if not ready.wait(60):
            raise RuntimeError("the fake engine did not start")
        yield started[0]
    finally:
        done.set()
        thread.join()


def job_of(model: Path, folder: Path, targets: Path, urls: Sequence[str], steps: int) -> Job:
    (folder / "shm").mkdir(exist_ok=True)
    sections: dict[str, dict[str, Any]] = {
        "run": {"output_dir": str(folder / NAME)},
        "model": {"path": str(model)},
        "generation": {"num_generations": 4, "max_completion_length": 24},
        "engines": {"urls": list(urls), "devices": [], "dtype": "float32"},
        "buffer": {"max_staleness": 2, "filter_uniform_groups": True, "refill_budget": 0.34},
        "replay": {"replay_fraction": 0.25},
        "objective": {"beta": 0.01, "epsilon": 0.05, "top_entropy_quantile": 0.9, "off_policy_mask_threshold": 0.02},
        "training": {
            "max_steps": steps,
            "groups_per_step": 4,
            "learning_rate": 5e-4,
            "num_iterations": 2,
        },
        "learner": {"mode": "inline", "devices": ["cpu"]},
        # A tiny policy that learns this fast is never calm.
        "guards": {f"{guard}_action": "off" for guard in ("mismatch", "kl_spike", "gradient_spike")},
        "weights": {"shared_memory_dir": str(folder / "shm")},
        "evaluation": {"eval_steps": 8, "num_generations_eval": 4, "pass_threshold": 0.6},
        "checkpoint": {"save_steps": 10},
        "observe": {"targets_dir": str(targets)},
    }
    rows = [{"prompt": f"{chr(97 + i)} sum {i}", "counts": float(i % 5 > 0)} for i in range(24)]
    held_out = [{"prompt": f"held out {i}", "counts": 1.0} for i in range(4)]
    return prepare(
        RunConfig.model_validate(sections), rows=rows, eval_rows=held_out, rewards=from_callables([letters, has_vowel])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("targets", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    model = make_tiny_model(arguments.folder / "model")
    with ExitStack() as stack:
        urls = [stack.enter_context(engine(model, seed)) for seed in (0, 1)]
        run_job(job_of(model, arguments.folder, arguments.targets, urls, arguments.steps), config_text="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
