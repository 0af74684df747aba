"""TRL's side of step_vs_trl.py: GRPOTrainer on the quickstart's prompts, rewards and sizes, timed step by step.

Everything is TRL's own: sampling, rewards, loss, AdamW; only clocks are added. Started with a `Request` as JSON; the
last line is {"steps": [one record per step]}.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from shared import Figures
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import load_config
from asyncgrpo.rewards.importing import import_function

AS_WE_TRAIN = {"bf16": False, "gradient_checkpointing": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},  # bfloat16 autocast, gradient checkpointing
    "float32": AS_WE_TRAIN,
    # vLLM's engine in TRL's process, generating and training in turn.
    "vllm": AS_WE_TRAIN | {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.1},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    config: str
    """YAML file of the run that TRL is compared with."""
    overrides: list[str]
    steps: int
    micro_batch: int
    """Samples in one forward and backward pass."""
    setting: str
    """A key of `SETTINGS`."""
    threads: int


def main(request: Request) -> Figures:
    torch.set_num_threads(request.threads)
    config = load_config(request.config, request.overrides).config
    rows = [json.loads(line) for line in Path(config.data.dataset).read_text().splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Timed(
            model=config.model.path,
            reward_funcs=[import_function(section.path) for section in config.rewards if section.path],
            args=make_config(request, config, folder),
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(config.model.path),
        )
        clock = StepClock(trainer)
        trainer.add_callback(clock)
        trainer.train()
    return {"steps": clock.steps}


def make_config(request: Request, config: RunConfig, folder: str) -> GRPOConfig:
    """Samples of a step, lengths, optimiser as in `config`; the rest is TRL's default."""
    samples = config.samples_per_step
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=request.micro_batch,
        gradient_accumulation_steps=samples // request.micro_batch,
        num_iterations=config.training.num_iterations,
        num_generations=config.generation.num_generations,
        max_completion_length=config.generation.max_completion_length,
        temperature=config.generation.temperature,
        learning_rate=config.training.learning_rate,
        lr_scheduler_type=config.training.lr_scheduler_type,
        beta=config.objective.beta,
        epsilon=config.objective.epsilon,
        loss_type=config.objective.loss_type,
        seed=config.run.seed,
        max_steps=request.steps,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        vllm_max_model_length=config.engines.max_model_len,
        **SETTINGS[request.setting],
    )


class Timed(GRPOTrainer):
    """Adds up the seconds of a step's parts."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.seconds: dict[str, float] = {}
        self.tokens = 0

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        with self.part("rollouts"):  # generation, rewards; with vLLM also the forward pass for importance weights
            batch = super()._generate_and_score_completions(inputs)
        self.tokens = int(batch["completion_mask"].sum())
        return batch

    def _generate_single_turn(self, *arguments: Any, **keywords: Any) -> Any:
        with self.part("generation"):  # with vLLM also loading the weights into it
            return super()._generate_single_turn(*arguments, **keywords)

    def training_step(self, *arguments: Any, **keywords: Any) -> Any:
        with self.part("training_step"):  # rollouts are made inside
            return super().training_step(*arguments, **keywords)


class StepClock(TrainerCallback):
    """One record per step; a step lasts from the end of the one before, as ours do."""

    def __init__(self, trainer: Timed) -> None:
        self.steps: list[dict[str, float]] = []
        self._trainer = trainer
        self._ended = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        self._ended = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        now, parts = time.perf_counter(), self._trainer.seconds
        step = now - self._ended
        rollouts, inner = parts.get("rollouts", 0.0), parts.get("training_step", 0.0)
        self.steps.append(
            {
                "step_seconds": step,
                "generation_seconds": parts.get("generation", 0.0),
                "scoring_seconds": rollouts - parts.get("generation", 0.0),
                "forward_backward_seconds": inner - rollouts,
                "optimiser_seconds": step - inner,
                "tokens_trained": self._trainer.tokens,
                "reward_mean": self._trainer._metrics["train"]["reward"][-1],
            }
        )
        self._trainer.seconds = {}
        self._ended = now


if __name__ == "__main__":
    print(json.dumps(main(Request(**json.loads(sys.argv[1])))), flush=True)
