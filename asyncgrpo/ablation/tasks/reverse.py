"""Reverse digits: `31415926=` is to be continued by `62951413`. A task for a laptop, with room to fail.

Of every seed: a tiny transformer, trained with supervision until it solves about `start` of the prompts; prompts to
train on, and others that are held out. All arms of the seed begin from these. What decides when supervision ends are
prompts of their own, so that the held-out score at step 0 was not chosen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from asyncgrpo.ablation.randomness import Purpose, random_of
from asyncgrpo.config.section import Fraction, Section
from asyncgrpo.errors import ConfigError

PAD, END, ASK = "<pad>", "<end>", "="
DIGITS = "0123456789"
CHECKED = 512
"""Prompts that say when supervision ends; as precise as the held-out score."""


class Options(Section):
    digits: Annotated[int, Field(ge=2, le=64)] = 8
    """Of a prompt."""
    width: PositiveInt = 64
    layers: PositiveInt = 2
    heads: PositiveInt = 4
    train: PositiveInt = 4096
    """Prompts to train on; gone through again if there are fewer than the run needs."""
    held_out: PositiveInt = 512
    start: Fraction = 0.25
    """Share of prompts that the start solves greedily, about: supervision ends at the first look at which it does."""
    batch: PositiveInt = 64
    """Of the supervision."""
    learning_rate: PositiveFloat = 5e-4
    """Of the supervision."""
    most_updates: PositiveInt = 2000
    look_every: PositiveInt = 1


def prepare(folder: Path, seed: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Write model, prompts and held-out prompts of a seed; the settings that name them.

    Raises ConfigError for options that it does not have, or with which the start is not reached.
    """
    try:
        chosen = Options.model_validate(dict(options))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"prepare.options.{name} = {problem['input']!r}: {problem['msg']}") from error
    rows = distinct_prompts(random_of(Purpose.PROMPTS, seed), CHECKED + chosen.held_out + chosen.train, chosen.digits)
    checked, held_out, train = np.split(rows, [CHECKED, CHECKED + chosen.held_out])
    write_rows(folder / "held_out.jsonl", held_out)
    write_rows(folder / "train.jsonl", train)
    model = supervised(seed, checked, chosen)
    model.save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    return {
        "model.path": str(folder / "model"),
        "data.dataset": str(folder / "train.jsonl"),
        "evaluation.dataset": str(folder / "held_out.jsonl"),
    }


def distinct_prompts(random: np.random.Generator, count: int, digits: int) -> np.ndarray:
    """[count, digits], no two alike. Raises ConfigError if there are not so many."""
    if 10**digits < 2 * count:
        raise ConfigError(
            f"prepare.options.digits = {digits}: there are too few such prompts for {count} distinct ones"
        )
    found = np.unique(random.integers(0, 10, (2 * count, digits)), axis=0)
    return np.asarray(random.permutation(found)[:count])


def write_rows(path: Path, digits: np.ndarray) -> None:
    """As JSON lines with `prompt` and `solution`."""
    texts = ["".join(map(str, row)) for row in digits.tolist()]
    lines = [json.dumps({"prompt": f"{text}{ASK}", "solution": text[::-1]}) for text in texts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A token per character."""
    vocabulary = {token: number for number, token in enumerate((PAD, END, *DIGITS, ASK))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )


def untrained(seed: int, options: Options) -> GPT2LMHeadModel:
    """Learned positions, since a reversed place is an absolute one; ReLU, since it costs least."""
    config = GPT2Config(
        vocab_size=len(DIGITS) + 3,
        n_positions=2 * options.digits + 1,
        n_embd=options.width,
        n_inner=2 * options.width,
        n_layer=options.layers,
        n_head=options.heads,
        activation_function="relu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config).eval()


def supervised(seed: int, checked: np.ndarray, options: Options) -> GPT2LMHeadModel:
    """Trained until it solves `start` of the `checked` prompts. Raises ConfigError if it never does."""
    model, random = untrained(seed, options), random_of(Purpose.SUPERVISION, seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    tested = sequences(checked)
    share = 0.0
    for update in range(options.most_updates):
        if update % options.look_every == 0:
            share = solved(model, tested)
            if share >= options.start:
                return model
        tokens = sequences(random.integers(0, 10, (options.batch, options.digits)))
        logits = model(input_ids=tokens, use_cache=False).logits[:, options.digits : -1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, options.digits + 1 :].flatten())
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    raise ConfigError(
        f"prepare.options.most_updates = {options.most_updates}: after them {share:.2f} of the prompts are solved, "
        f"less than start = {options.start}; raise it, or learning_rate"
    )


@torch.no_grad()
def solved(model: GPT2LMHeadModel, tokens: Tensor) -> float:
    """Share of the prompts that are solved greedily: those of which every token is the likeliest after the right ones
    before it."""
    answer = tokens.shape[1] // 2 + 1
    likeliest = model(input_ids=tokens, use_cache=False).logits[:, answer - 1 : -1].argmax(dim=-1)
    return float((likeliest == tokens[:, answer:]).all(dim=1).float().mean())


def right_digits(completions: Sequence[str], solution: Sequence[str], **columns: Any) -> list[float]:
    """Reward: share of the solution's digits that stand in their place."""
    pairs = zip(completions, solution, strict=True)
    return [sum(a == b for a, b in zip(text, right, strict=False)) / len(right) for text, right in pairs]


def sequences(digits: np.ndarray) -> Tensor:
    """Token ids of prompts with their right answers, [rows, 2 digits + 1]."""
    tokens = torch.from_numpy(np.asarray(digits)) + 2
    return torch.cat([tokens, torch.full((len(tokens), 1), len(DIGITS) + 2), tokens.flip(1)], dim=1)
