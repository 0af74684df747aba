"""LoRA: modules trained whole, an adapter that is gone on from, what it is compared with, and what is saved of it."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from learning_cases import make_config, random_groups
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from asyncgrpo.config import RunConfig
from asyncgrpo.config.adapter import with_adapter
from asyncgrpo.errors import ConfigError, LearnerError
from asyncgrpo.learning.batching import make_batch, shards
from asyncgrpo.learning.export import export_tensors
from asyncgrpo.learning.learner import Learner
from asyncgrpo.learning.lora import trained_head

CPU = torch.device("cpu")
WHOLE = {
    "lora_r": 4,
    "lora_target_modules": ("q_proj", "down_proj"),
    "lora_modules_to_save": ("embed_tokens", "lm_head"),
}
IDS = torch.arange(1, 12)[None]


def learner_of(path: Path | str, steps: int = 0, **sections: dict[str, Any]) -> Learner:
    training = {"learning_rate": 1e-2} | sections.pop("training", {})
    learner = Learner(with_adapter(make_config(str(path), training=training, **sections)), "cpu")
    for _ in range(steps):
        train(learner)
    return learner


def train(learner: Learner) -> dict[str, float]:
    batch = make_batch(random_groups(learner.version), learner.version, learner.config)
    return dict(learner.train(shards(batch, learner.config, 1)[0]).metrics)


def saved_adapter(learner: Learner, folder: Path) -> Path:
    learner.save_model(str(folder))
    return folder / "adapter"


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model.eval()(input_ids=IDS).logits


def live(learner: Learner) -> torch.Tensor:
    return logits(learner._loaded.model)


@pytest.mark.parametrize("lora", [{"lora_r": 4}, WHOLE], ids=["adapters", "whole modules"])
def test_what_is_saved_is_the_live_policy_merged_and_as_an_adapter(
    untied_model: Path, tmp_path: Path, lora: dict[str, Any]
) -> None:
    learner = learner_of(untied_model, steps=2, lora=lora)
    expected = live(learner)
    base = AutoModelForCausalLM.from_pretrained(untied_model)
    assert (expected - logits(base)).abs().max() > 0.1
    adapter = saved_adapter(learner, tmp_path / "final")
    near = {"rtol": 1e-5, "atol": 3e-5}
    torch.testing.assert_close(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "final")), expected, **near)
    torch.testing.assert_close(logits(AutoPeftModelForCausalLM.from_pretrained(adapter)), expected, **near)
    torch.testing.assert_close(logits(PeftModel.from_pretrained(base, adapter)), expected, **near)
    merged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(untied_model), adapter).merge_and_unload()
    torch.testing.assert_close(logits(merged), expected, **near)


def test_a_head_trained_whole_is_trained_and_exported(untied_model: Path) -> None:
    learner = learner_of(untied_model, steps=1, lora=WHOLE)
    tensors = export_tensors(learner._loaded.model)
    before = load_file(untied_model / "model.safetensors")
    assert tensors.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], tensors[name])}
    assert {"lm_head.weight", "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"} <= changed
    assert "model.layers.0.self_attn.k_proj.weight" not in changed


def test_a_head_trained_whole_is_a_plain_layer(untied_model: Path) -> None:
    learner = learner_of(untied_model, lora=WHOLE, objective={"beta": 0.1})
    head = learner._loaded.model.get_output_embeddings()
    assert trained_head(head) is head.modules_to_save["default"]
    with learner._loaded.reference():
        assert trained_head(head) is head.original_module
    assert type(trained_head(head)) is torch.nn.Linear


def test_the_reference_of_modules_trained_whole_is_the_model_before(untied_model: Path) -> None:
    learner = learner_of(untied_model, steps=2, lora=WHOLE, objective={"beta": 0.1})
    plain = learner_of(untied_model, objective={"beta": 0.1})
    sequence = [((5, 6, 7), (8, 9, 10))]
    with learner._loaded.reference():
        as_reference = learner.score(sequence)[0]
    assert as_reference.tolist() == plain.score(sequence)[0].tolist()
    assert as_reference.tolist() != learner.score(sequence)[0].tolist()


@pytest.mark.parametrize("name", ["embed_tokens", "lm_head"])
def test_one_end_of_tied_embeddings_is_not_trained_whole(tied_model: Path, name: str) -> None:
    """huggingface/peft #2777: they drift apart, and a merge loses one."""
    with pytest.raises(
        ConfigError, match=rf"lora_modules_to_save=\('{name}',\) adapts an embedding that this model ties"
    ):
        learner_of(tied_model, lora={"lora_r": 2, "lora_modules_to_save": (name,)})


def test_a_module_to_save_that_is_not_there(tied_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"names 'score', which the model does not have; its modules are .*q_proj"):
        learner_of(tied_model, lora={"lora_r": 2, "lora_modules_to_save": ("score",)})


@pytest.fixture(scope="module")
def adapter(untied_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that is far from its base model."""
    return saved_adapter(learner_of(untied_model, steps=2, lora=WHOLE), tmp_path_factory.mktemp("adapter"))


def test_training_goes_on_from_an_adapter(untied_model: Path, adapter: Path) -> None:
    learner = learner_of(adapter)
    assert learner.config.model.path == str(untied_model)
    assert learner.config.lora.lora_adapter == str(adapter)
    assert (learner.config.lora.lora_r, learner.config.lora.lora_target_modules) == (4, ("down_proj", "q_proj"))
    torch.testing.assert_close(live(learner), logits(AutoPeftModelForCausalLM.from_pretrained(adapter)))
    before = live(learner)
    train(learner)
    assert (live(learner) - before).abs().max() > 0.01


def test_the_reference_is_the_policy_at_the_start(adapter: Path) -> None:
    """huggingface/trl #3194: it was the bare base model."""
    learner = learner_of(adapter, objective={"beta": 0.1})
    start = live(learner)
    assert train(learner)["kl/current_reference_k3"] == 0.0
    assert train(learner)["kl/current_reference_k3"] > 1e-4
    with learner._loaded.reference() as model:
        assert torch.equal(logits(model), start)
    assert not torch.equal(live(learner), start)


def test_a_resume_keeps_that_reference_and_is_bitwise(adapter: Path, tmp_path: Path) -> None:
    """huggingface/lerobot #3459: a resume put fresh adapters in."""
    learner = learner_of(adapter, steps=2, objective={"beta": 0.1})
    learner.save(str(tmp_path))
    expected = [train(learner), train(learner)]
    resumed = learner_of(adapter, objective={"beta": 0.1})
    resumed.load(str(tmp_path))
    assert [train(resumed), train(resumed)] == expected
    assert torch.equal(live(resumed), live(learner))


def test_a_resume_with_another_adapter_as_reference_is_refused(adapter: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(adapter, other)
    weights = load_file(other / "adapter_model.safetensors")
    save_file({name: tensor * 1.5 for name, tensor in weights.items()}, other / "adapter_model.safetensors")
    learner_of(adapter, steps=1, objective={"beta": 0.1}).save(str(tmp_path / "saved"))
    with pytest.raises(LearnerError, match="trained from other initial weights"):
        learner_of(other, objective={"beta": 0.1}).load(str(tmp_path / "saved"))


def test_rank_patterns_and_rslora_are_the_adapters_own(untied_model: Path, adapter: Path, tmp_path: Path) -> None:
    peculiar = tmp_path / "peculiar"
    shutil.copytree(adapter, peculiar)
    edit(peculiar, use_rslora=True, alpha_pattern={"q_proj": 3})
    learner = learner_of(peculiar)
    expected = logits(AutoPeftModelForCausalLM.from_pretrained(peculiar))
    torch.testing.assert_close(live(learner), expected)
    assert (expected - live(learner_of(adapter))).abs().max() > 0.01
    again = saved_adapter(learner, tmp_path / "final")
    torch.testing.assert_close(logits(AutoPeftModelForCausalLM.from_pretrained(again)), expected)
    torch.testing.assert_close(
        logits(AutoModelForCausalLM.from_pretrained(tmp_path / "final")), expected, rtol=1e-5, atol=3e-5
    )


def test_an_adapter_of_another_model_is_refused(tied_model: Path, untied_model: Path, tmp_path: Path) -> None:
    adapter = saved_adapter(learner_of(untied_model, lora={"lora_r": 2, "lora_target_modules": ("q_proj",)}), tmp_path)
    weights = load_file(adapter / "adapter_model.safetensors")
    (name, *_) = sorted(weights)
    save_file({n: t for n, t in weights.items() if n != name}, adapter / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=r"is not an adapter of this model: it lacks '.*lora_A"):
        learner_of(adapter)
    save_file({n: t[:, :-1].contiguous() for n, t in weights.items()}, adapter / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=r"is not an adapter of this model: .*size mismatch"):
        learner_of(adapter)
    save_file({**weights, "base_model.model.x.lora_A.weight": torch.ones(1)}, adapter / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=r"holds '.*x.lora_A.*', which it has not"):
        learner_of(adapter)
    assert tied_model != untied_model


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_swapping_leaves_gradients_and_parameters_alone(adapter: Path) -> None:
    learner = learner_of(adapter, objective={"beta": 0.1}, steps=1)
    parameters = {name: p for name, p in learner._loaded.model.named_parameters() if p.requires_grad}
    before = {name: (p.data_ptr(), p.detach().clone()) for name, p in parameters.items()}
    with learner._loaded.reference():
        assert any(not torch.equal(p, before[name][1]) for name, p in parameters.items())
    after = {name: p for name, p in learner._loaded.model.named_parameters() if p.requires_grad}
    assert all(after[name] is parameters[name] for name in parameters)
    assert all(p.data_ptr() == before[name][0] and torch.equal(p, before[name][1]) for name, p in after.items())


def test_nothing_is_kept_without_a_reference(adapter: Path) -> None:
    assert learner_of(adapter)._loaded.initial is None
    assert isinstance(learner_of(adapter).config, RunConfig)
    assert dataclasses.is_dataclass(learner_of(adapter)._loaded)
