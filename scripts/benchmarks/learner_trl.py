"""TRL's side of a measurement: its GRPOTrainer on the work given as JSON. Started by `learner_vs_trl.py`.

`GRPOTrainer.train()` runs as it is, with one method replaced: `_generate_and_score_completions` returns the given
samples, in the layout TRL gives its own (prompts padded on the left, completions on the right). A timed step lies
between TRL's callbacks on_step_begin and on_step_end: forward, loss, backward, clipping, AdamW, metrics; with
`corrected` also the forward pass for the weights, as TRL makes it after generating with vLLM.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from shared import (
    LEARNING_RATE,
    Figures,
    Samples,
    Work,
    allocate_gradients,
    answer,
    make_samples,
    peak_since,
    start_peak,
)
from torch import Tensor
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import pad

WARM_UP, MEMORY, FIRST_TIMED = 0, 1, 2
"""Which step is for what."""
CAP = 2.0
"""Of a token's weight; our own default."""


def figures_of(work: Work) -> Figures:
    torch.set_num_threads(work.threads)
    samples = make_samples(work)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GivenRollouts(work, samples, folder)
        clock = Clock(trainer)
        trainer.add_callback(clock)
        trainer.train()
    return {
        "seconds": clock.seconds[FIRST_TIMED:],
        "tokens": samples.tokens,
        "peak_bytes": clock.peak,
        "loss": trainer.first_loss,
        "grad_norm": trainer.state.log_history[0]["grad_norm"],
        "logprob_sum": trainer.first_logprob_sum,
    }


class GivenRollouts(GRPOTrainer):
    """TRL's learner without its generation. Keeps loss and log-probabilities of the first step, for comparison."""

    def __init__(self, work: Work, samples: Samples, folder: str) -> None:
        tokenizer = AutoTokenizer.from_pretrained(work.model)
        super().__init__(
            model=work.model,
            reward_funcs=_no_reward,
            args=make_config(work, folder),
            train_dataset=Dataset.from_dict({"prompt": ["none"] * work.samples}),
            processing_class=tokenizer,
        )
        self.use_vllm = work.corrected  # the loss then takes the weights; nothing is generated
        self.behaviour_logprob = samples.behaviour_logprob
        self.rollouts = collate(samples, tokenizer.pad_token_id)
        self.first_loss = 0.0
        self.first_logprob_sum = 0.0

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Tensor]:
        if not self.use_vllm:
            return dict(self.rollouts)
        return self.rollouts | self._weights()

    @torch.no_grad()
    def _weights(self) -> dict[str, Tensor]:
        """What TRL computes here from vLLM's log-probabilities, with `vllm_importance_sampling_mode=token_truncate`."""
        prompt, completion = self.rollouts["prompt_ids"], self.rollouts["completion_ids"]
        mask = self.rollouts["completion_mask"]
        old, _, _ = self._get_per_token_logps_and_entropies(
            self.model,
            torch.cat([prompt, completion], dim=1),
            torch.cat([self.rollouts["prompt_mask"], mask], dim=1),
            completion.size(1),
            batch_size=self.args.per_device_train_batch_size,
        )
        sampling = torch.full_like(old, self.behaviour_logprob)
        weights = torch.exp((old - sampling) * mask).clamp(max=CAP)
        return {"old_per_token_logps": old, "sampling_per_token_logps": sampling, "importance_sampling_ratio": weights}

    def training_step(self, *arguments: Any, **keywords: Any) -> Tensor:
        loss: Tensor = super().training_step(*arguments, **keywords)
        if self.state.global_step == WARM_UP:
            self.first_loss += float(loss)
        return loss

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **keywords: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*arguments, **keywords)
        if self.state.global_step == WARM_UP and torch.is_grad_enabled():
            self.first_logprob_sum += float(result[0].detach().double().sum())  # padding is 0
        return result


class Clock(TrainerCallback):
    """Seconds of every step, and the peak memory of one."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self.seconds: list[float] = []
        self.peak = 0
        self._trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        if state.global_step == MEMORY:
            allocate_gradients(self._trainer.model.parameters())
            self._resident = start_peak()
        self._started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        self.seconds.append(time.perf_counter() - self._started)
        if len(self.seconds) == MEMORY + 1:
            self.peak = peak_since(self._resident)


def make_config(work: Work, folder: str) -> GRPOConfig:
    """TRL's defaults (AdamW, clipping, `dapo` loss, no KL), in float32, with the work's sizes."""
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=work.checkpointed,
        per_device_train_batch_size=work.micro_batch,
        gradient_accumulation_steps=work.samples // work.micro_batch,
        num_generations=work.generations,
        max_completion_length=work.completion,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_steps=FIRST_TIMED + work.steps,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def collate(samples: Samples, padding: int) -> dict[str, Tensor]:
    """The inputs of TRL's loss, as its `_generate_and_score_completions` lays them out."""
    prompts, prompt_mask = _padded(samples.prompts, padding, "left")
    completions, completion_mask = _padded(samples.completions, padding, "right")
    return {
        "prompt_ids": prompts,
        "prompt_mask": prompt_mask,
        "completion_ids": completions,
        "completion_mask": completion_mask,
        "advantages": torch.from_numpy(samples.advantages),
        "num_items_in_batch": completion_mask.sum(),
    }


def _padded(sequences: list[list[int]], padding: int, side: str) -> tuple[Tensor, Tensor]:
    tensors = [torch.tensor(sequence) for sequence in sequences]
    ones = [torch.ones_like(tensor) for tensor in tensors]
    return pad(tensors, padding_value=padding, padding_side=side), pad(ones, padding_value=0, padding_side=side)


def _no_reward(completions: list[Any], **columns: Any) -> list[float]:
    return [0.0] * len(completions)


if __name__ == "__main__":
    answer(figures_of)
