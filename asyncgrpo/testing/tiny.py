"""A tiny random language model with a real tokenizer, and tiny tasks for it, written to disk without any network.

The folder is ordinary Hugging Face format: transformers, peft and vLLM load it. Its distribution is far from uniform
(entropy about two thirds of the maximum); no parameter is trivial, norms and biases included, so that a transport which
forgets one is noticed; and end-of-text is likely enough that completions have different lengths.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging as transformers_logging

Architecture = Literal["llama", "qwen2"]

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INIT_STD = 0.15
END_SCALE = 2.5  # the end token's logit varies this much more than others, so it wins now and then


def make_tiny_model(
    folder: str | Path,
    *,
    tied: bool = True,
    architecture: Architecture = "qwen2",
    seed: int = 0,
    vocab_size: int = 272,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> Path:
    """Write model and tokenizer into `folder` (created if missing) and return it. Same arguments, same weights.

    tied: the output head is the embedding matrix. vocab_size: at least the tokenizer's 259; ids beyond are padding that
    can be sampled all the same, as in real models. Raises ValueError for a smaller one.
    """
    folder = Path(folder)
    tokenizer = make_tokenizer()
    if vocab_size < len(tokenizer):
        raise ValueError(f"vocab_size={vocab_size} is smaller than the tokenizer's {len(tokenizer)}")
    model = _build(architecture, tied, vocab_size, tokenizer)
    _randomise(model, seed, tokenizer.eos_token_id)
    with quiet():
        model.to(getattr(torch, dtype)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level: 3 special tokens, then one token per byte, so that any text survives a round trip."""
    vocabulary = {token: i for i, token in enumerate((PAD, START, END))}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[symbol] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars from transformers."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _build(
    architecture: Architecture, tied: bool, vocab_size: int, tokenizer: PreTrainedTokenizerFast
) -> LlamaForCausalLM | Qwen2ForCausalLM:
    shape: dict[str, Any] = dict(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,  # heads of 32: the smallest that vLLM's CPU attention takes
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    if architecture == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape))
    return Qwen2ForCausalLM(Qwen2Config(**shape))


def _randomise(model: torch.nn.Module, seed: int, end_token: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1.0 + 0.1 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.1 * noise)
            else:
                parameter.copy_(INIT_STD * noise)
        head = model.get_output_embeddings().weight  # type: ignore[operator]
        head[end_token] *= END_SCALE


def addition_rows(count: int, *, seed: int = 0, largest: int = 9) -> list[dict[str, str]]:
    """Rows like `{"prompt": "3+5=", "answer": "8"}`: `count` of them, deterministic by seed."""
    return list(_additions(count, random.Random(seed), largest))


def _additions(count: int, rng: random.Random, largest: int) -> Iterator[dict[str, str]]:
    for _ in range(count):
        a, b = rng.randint(0, largest), rng.randint(0, largest)
        yield {"prompt": f"{a}+{b}=", "answer": str(a + b)}


def write_rows(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as JSON lines and return the path."""
    path = Path(path)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
