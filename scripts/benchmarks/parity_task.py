"""What both sides of parity_with_trl.py learn: to reverse digits, from a start that can already do it now and then.

A prompt is `483920=`, its answer `029384` and the end token. The start is a two-layer GPT-2 of width 64 with a token
per character, trained on right answers until its greedy ones are right a quarter of the time. Everything depends on the
settings and their seed alone, so both sides of a seed have the same start, prompts in the same order, and held-out
prompts.

As a program: makes the start of the settings given as JSON, and prints {"score": …}.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

PAD, END = "<pad>", "<end>"
DIGITS = "0123456789"
VOCABULARY = {token: number for number, token in enumerate((PAD, END, "=", *DIGITS))}
BATCH, MOST_UPDATES, SUPERVISED_RATE = 64, 2000, 5e-4
"""Of the supervised start: examples per update, when to give up, and the learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of both sides alike."""

    seed: int
    digits: int = 6
    start_score: float = 0.25
    """Share of greedy answers that are right when the supervised start ends."""
    steps: int = 50
    eval_steps: int = 5
    held_out: int = 256
    """Prompts that are answered greedily."""
    groups: int = 16
    """Prompts per step."""
    generations: int = 8
    """Samples of a prompt."""
    iterations: int = 4
    """Optimiser updates over the samples of a step: the later ones have ratios that the clip acts on."""
    learning_rate: float = 3e-4
    schedule: str = "linear"
    warmup: int = 10
    """Optimiser updates until the learning rate is reached: without, AdamW's first ones undo the start."""
    loss_type: str = "dapo"
    epsilon: float = 0.2
    beta: float = 0.01
    scale_rewards: str = "group"
    temperature: float = 1.0
    max_grad_norm: float = 1.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    folder: str = ""
    """Where the start is, and what a side leaves behind."""

    @property
    def start(self) -> Path:
        return Path(self.folder) / f"start_{self.seed}"

    @property
    def max_completion_length(self) -> int:
        """Room for the answer, its end token, and for an answer too long to be seen as such."""
        return self.digits + 2


Row = dict[str, str]


def training_rows(settings: Settings) -> list[Row]:
    """As many as the run trains, in its order: `steps` x `groups`. None of them is held out."""
    held_out = {row["prompt"] for row in held_out_rows(settings)}
    rows = _rows(random.Random(f"train {settings.seed}"), settings.digits)
    return _take((row for row in rows if row["prompt"] not in held_out), settings.steps * settings.groups)


def held_out_rows(settings: Settings) -> list[Row]:
    return _take(_rows(random.Random(f"held out {settings.seed}"), settings.digits), settings.held_out)


def in_place(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """The reward: share of the answer's digits that stand where they should; a completion too long loses by it."""
    return [_share(text, right) for text, right in zip(completions, answer, strict=True)]


def _share(text: str, right: str) -> float:
    return sum(a == b for a, b in zip(text, right, strict=False)) / max(len(text), len(right))


def exact(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """The score: 1 for the answer and nothing else."""
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def _rows(source: random.Random, digits: int) -> Iterator[Row]:
    while True:
        text = "".join(source.choices(DIGITS, k=digits))
        yield {"prompt": f"{text}=", "answer": text[::-1]}


def _take(rows: Iterator[Row], count: int) -> list[Row]:
    return [next(rows) for _ in range(count)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )


def make_start(settings: Settings) -> float:
    """Write the model to begin with, and its tokenizer, to `settings.start`; returns its score on prompts of its own.

    Raises RuntimeError if it does not learn in `MOST_UPDATES`.
    """
    torch.manual_seed(settings.seed)
    model, tokenizer = _untrained(), make_tokenizer()
    rows = _rows(random.Random(f"start {settings.seed}"), settings.digits)
    checked = _take(rows, settings.held_out)
    optimiser = torch.optim.AdamW(model.parameters(), lr=SUPERVISED_RATE, weight_decay=0.0)
    for _ in range(MOST_UPDATES):
        score = greedy_score(model, tokenizer, checked)
        if score >= settings.start_score:
            model.save_pretrained(settings.start)
            tokenizer.save_pretrained(settings.start)
            return score
        logits, right = _answered(model, tokenizer, _take(rows, BATCH))
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), right.flatten()).backward()
        optimiser.step()
        optimiser.zero_grad()
    raise RuntimeError(f"after {MOST_UPDATES} updates the start's score is below {settings.start_score}")


def greedy_score(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, rows: Sequence[Row]) -> float:
    """Share of `rows` that the model answers rightly when it answers greedily: those of which every token, the end's
    included, is the likeliest after the right ones before it."""
    with torch.inference_mode():
        logits, right = _answered(model, tokenizer, rows)
    return float((logits.argmax(dim=-1) == right).all(dim=1).double().mean())


def _answered(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Logits [rows, answer, vocabulary] where the right answers stand, and these [rows, answer]."""
    ids = torch.tensor([tokenizer(row["prompt"] + row["answer"] + END).input_ids for row in rows])
    prompt = len(rows[0]["prompt"])
    return model(ids, use_cache=False).logits[:, prompt - 1 : -1], ids[:, prompt:]


def _untrained() -> GPT2LMHeadModel:
    """Learned positions, since a reversed place is an absolute one."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(VOCABULARY),
            n_positions=64,
            n_embd=64,
            n_inner=128,
            n_layer=2,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=VOCABULARY[END],
            pad_token_id=VOCABULARY[PAD],
        )
    )


def main(settings: Settings) -> dict[str, float]:
    torch.set_num_threads(1)
    return {"score": make_start(settings)}


if __name__ == "__main__":
    print(json.dumps(main(Settings(**json.loads(sys.argv[1])))), flush=True)
