"""Our side of parity_with_trl.py: AsyncGRPOTrainer with max_staleness 0 on one seed. Started with
`parity_task.Settings` as JSON.

The whole product, but for vLLM: in its place stands the fake engine of the tests, a server process that speaks vLLM's
protocol, samples from the true distributions of the weights published last, in float32, and reports their
log-probabilities. Held-out prompts are answered greedily by that engine, as the product's own evaluation does. The
last line is {"curve": [[step, score], …], …}.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

import torch
from parity_task import Settings, greedy_score, held_out_rows, in_place, training_rows
from shared import Figures
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncgrpo import AsyncGRPOConfig, AsyncGRPOTrainer
from asyncgrpo.observe.evaluations import read_evaluations
from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.observe.run_folder import RunFolder

ENGINE = "asyncgrpo.testing.fake_engine"
SCORE = f"{Path(__file__).with_name('parity_task.py')}:exact"


def main(settings: Settings) -> Figures:
    torch.set_num_threads(1)
    started = time.perf_counter()
    trainer = AsyncGRPOTrainer(
        model=str(settings.start),
        reward_funcs=in_place,
        args=make_config(settings),
        train_dataset=training_rows(settings),
        eval_dataset=held_out_rows(settings),
        engine_module=ENGINE,
    )
    with contextlib.redirect_stdout(sys.stderr):  # the last line of stdout is ours
        folder = trainer.train().folder
    steps = read_metrics(folder.metrics_file)
    return {
        "curve": curve_of(folder),
        "final_by_transformers": score_of(folder, settings),
        "seconds": time.perf_counter() - started,
        "rewards": [record["reward_mean"] for record in steps],
        "most_staleness": max(record["staleness_max"] for record in steps),
        "clip_fraction": [record["learner/clip/fraction"] for record in steps],
    }


def curve_of(folder: RunFolder) -> list[tuple[int, float]]:
    return [(record["step"], record["reward_mean"]) for record in read_evaluations(folder.evaluation_file)]


def score_of(folder: RunFolder, settings: Settings) -> float:
    """Of the model that the run saved, as the other side measures it."""
    model = AutoModelForCausalLM.from_pretrained(folder.model_dir, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder.model_dir)
    return greedy_score(model, tokenizer, held_out_rows(settings))


def make_config(settings: Settings) -> AsyncGRPOConfig:
    samples = settings.groups * settings.generations
    return AsyncGRPOConfig(
        output_dir=str(settings.start.with_name(f"asyncgrpo_{settings.seed}")),
        seed=settings.seed,
        max_staleness=0,
        shuffle_dataset=False,
        max_steps=settings.steps,
        groups_per_step=settings.groups,
        num_iterations=settings.iterations,
        num_generations=settings.generations,
        max_completion_length=settings.max_completion_length,
        temperature=settings.temperature,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup,
        adam_beta1=settings.adam_beta1,
        adam_beta2=settings.adam_beta2,
        adam_epsilon=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        loss_type=settings.loss_type,
        epsilon=settings.epsilon,
        beta=settings.beta,
        kl_weight="proximal",
        scale_rewards=settings.scale_rewards,
        mask_truncated_completions=False,
        vllm_importance_sampling_correction="none",
        eval_steps=settings.eval_steps,
        eval_temperature=0.0,
        eval_rewards=[SCORE],
        eval_max_concurrency=settings.held_out,
        vllm_devices=["cpu"],
        vllm_dtype="float32",
        max_num_seqs=max(samples, settings.held_out),
        learner_devices=["cpu"],
        save_minutes=0.0,
        metrics_port=-1,
    )


if __name__ == "__main__":
    print(json.dumps(main(Settings(**json.loads(sys.argv[1])))), flush=True)
