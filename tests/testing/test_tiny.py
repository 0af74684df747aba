import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncgrpo.testing.tiny import addition_rows, make_tiny_model, write_rows


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_loads_as_the_asked_model(architecture: str, tied: bool, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", tied=tied, architecture=architecture)  # type: ignore[arg-type]
    model = AutoModelForCausalLM.from_pretrained(folder)
    weights = load_file(str(folder / "model.safetensors"))
    assert model.config.model_type == architecture
    assert ("lm_head.weight" in weights) is not tied
    shared = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert shared is tied
    for name, tensor in weights.items():
        assert tensor.float().std() > 0.05, f"{name} is trivial"


def test_the_distribution_is_neither_uniform_nor_certain(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    ids = torch.randint(3, 259, (8, 32), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(ids).logits, dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
    assert 0.5 < entropy / torch.log(torch.tensor(272.0)) < 0.85
    assert 0.01 < logprobs[..., model.generation_config.eos_token_id].exp().mean() < 0.2


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    folders = [make_tiny_model(tmp_path / str(i), seed=seed) for i, seed in enumerate((1, 1, 2))]
    first, second, third = (load_file(str(folder / "model.safetensors")) for folder in folders)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not any(torch.equal(first[name], third[name]) for name in first)


def test_any_text_survives_the_tokenizer(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    for text in ("3+5=", " two  spaces\n", "한국어 🎉 naïve"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode(chat)[:1] == [1]


def test_a_vocabulary_below_the_tokenizers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="vocab_size=128 is smaller than the tokenizer's 259"):
        make_tiny_model(tmp_path, vocab_size=128)


def test_addition_rows_are_true_and_repeatable(tmp_path: Path) -> None:
    rows = addition_rows(20, seed=3)
    assert rows == addition_rows(20, seed=3)
    assert rows != addition_rows(20, seed=4)
    for row in rows:
        left, right = row["prompt"].rstrip("=").split("+")
        assert int(left) + int(right) == int(row["answer"])
    lines = write_rows(tmp_path / "rows.jsonl", rows).read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
