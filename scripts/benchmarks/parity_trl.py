"""TRL's side of parity_with_trl.py: GRPOTrainer on one seed. Started with `parity_task.Settings` as JSON.

Everything is TRL's own: generation with transformers, rewards, loss, AdamW. A callback has the policy's greedy answers
to the held-out prompts scored. The last line is {"curve": [[step, score], …], …}.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from datasets import Dataset
from parity_task import Settings, greedy_score, held_out_rows, in_place, training_rows
from shared import Figures
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def main(settings: Settings) -> Figures:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(settings.start)
    trainer = GRPOTrainer(
        model=str(settings.start),
        reward_funcs=in_place,
        args=make_config(settings),
        train_dataset=Dataset.from_list(training_rows(settings)),
        processing_class=tokenizer,
    )
    curve = Curve(trainer, settings)
    trainer.add_callback(curve)
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started - curve.seconds
    log = trainer.state.log_history
    return {
        "curve": curve.points,
        "seconds": seconds,
        "rewards": [entry["reward"] for entry in log if "reward" in entry],
        "clip_fraction": [entry["clip_ratio/region_mean"] for entry in log if "clip_ratio/region_mean" in entry],
    }


class Curve(TrainerCallback):
    """Score of the start, and after every `eval_steps` steps."""

    def __init__(self, trainer: GRPOTrainer, settings: Settings) -> None:
        self.points: list[tuple[int, float]] = []
        self.seconds = 0.0
        self._trainer, self._settings = trainer, settings
        self._rows = held_out_rows(settings)

    def on_train_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        self._score(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        step, rest = divmod(state.global_step, self._settings.iterations)
        if not rest and (step % self._settings.eval_steps == 0 or step == self._settings.steps):
            self._score(step)

    def _score(self, step: int) -> None:
        started, trainer = time.perf_counter(), self._trainer
        model = trainer.accelerator.unwrap_model(trainer.model)
        self.points.append((step, greedy_score(model, trainer.processing_class, self._rows)))
        self.seconds += time.perf_counter() - started


def make_config(settings: Settings) -> GRPOConfig:
    """TRL counts an optimiser update as a step, takes the schedule's length from there, and generates every
    `num_iterations` of them."""
    return GRPOConfig(
        output_dir=str(settings.start.with_name(f"trl_{settings.seed}")),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=settings.seed,
        shuffle_dataset=False,
        max_steps=settings.steps * settings.iterations,
        per_device_train_batch_size=settings.groups * settings.generations,
        gradient_accumulation_steps=1,
        num_iterations=settings.iterations,
        num_generations=settings.generations,
        max_completion_length=settings.max_completion_length,
        temperature=settings.temperature,
        top_p=1.0,
        top_k=0,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup,
        optim="adamw_torch",
        adam_beta1=settings.adam_beta1,
        adam_beta2=settings.adam_beta2,
        adam_epsilon=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        loss_type=settings.loss_type,
        epsilon=settings.epsilon,
        beta=settings.beta,
        use_bias_correction_kl=True,
        scale_rewards=settings.scale_rewards,
        mask_truncated_completions=False,
        logging_steps=settings.iterations,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


if __name__ == "__main__":
    print(json.dumps(main(Settings(**json.loads(sys.argv[1])))), flush=True)
