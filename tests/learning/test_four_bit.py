"""A base model in four bits: rounded once, and the same rounded weights everywhere. Skipped without bitsandbytes."""

from pathlib import Path

import pytest
import torch
from learning_cases import make_config, random_groups
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from asyncgrpo.config import RunConfig
from asyncgrpo.learning.batching import make_batch, shards
from asyncgrpo.learning.export import export_tensors
from asyncgrpo.learning.four_bit import in_full, is_rounded
from asyncgrpo.learning.learner import Learner
from asyncgrpo.learning.merged import load_policy, save_merged

pytest.importorskip("bitsandbytes", reason="needs the extra bitsandbytes")

IDS = torch.arange(1, 12)[None]
SEQUENCE = [((5, 6, 7), (8, 9, 10))]
NAME = "model.layers.0.mlp.up_proj.weight"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def four_bit(path: Path, lora: dict[str, object] | None = None, **objective: float) -> RunConfig:
    return make_config(
        str(path),
        model={"path": str(path), "load_in_4bit": True},
        lora={"lora_r": 4} | (lora or {}),
        training={"learning_rate": 1e-2},
        objective=objective,
    )


def trained(config: RunConfig, steps: int = 2) -> Learner:
    learner = Learner(config, "cpu")
    for _ in range(steps):
        batch = make_batch(random_groups(learner.version), learner.version, config)
        learner.train(shards(batch, config, 1)[0])
    return learner


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model.eval()(input_ids=IDS).logits


def test_adapters_train_on_weights_that_are_rounded_and_stay_so(untied_model: Path) -> None:
    learner = trained(four_bit(untied_model), steps=0)
    held = dict(learner._loaded.model.named_parameters())
    rounded = {name: p.detach().clone() for name, p in held.items() if is_rounded(p)}
    assert len(rounded) == 7 * len(learner._loaded.model.model.layers)
    assert all(p.dtype == torch.uint8 for p in rounded.values())
    before = learner.score(SEQUENCE)[0]
    batch = make_batch(random_groups(0), 0, learner.config)
    learner.train(shards(batch, learner.config, 1)[0])
    assert abs(learner.score(SEQUENCE)[0] - before).max() > 1e-3
    assert all(torch.equal(held[name], was) for name, was in rounded.items())


@pytest.mark.parametrize("lora", [{}, {"lora_target_modules": ("q_proj",)}], ids=["all layers", "one kind of layer"])
def test_what_is_published_and_saved_is_what_is_computed(
    untied_model: Path, tmp_path: Path, lora: dict[str, object]
) -> None:
    """With the weights of the checkpoint under the adapters, engines would sample from another policy."""
    learner = trained(four_bit(untied_model, lora))
    expected = logits(learner._loaded.model)
    original = load_file(untied_model / "model.safetensors")
    tensors = export_tensors(learner._loaded.model)
    assert tensors.keys() == original.keys()
    assert {name: t.shape for name, t in tensors.items()} == {name: t.shape for name, t in original.items()}
    learner.save_model(str(tmp_path / "final"))
    final = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    assert getattr(final.config, "quantization_config", None) is None
    torch.testing.assert_close(logits(final), expected, rtol=1e-5, atol=3e-5)
    torch.testing.assert_close(final.state_dict()[NAME], tensors[NAME])
    if lora:  # no adapter there: nothing but the rounding
        changed = (tensors[NAME] - original[NAME]).abs().max()
        assert 0 < changed < 0.2 * original[NAME].abs().max()
    assert learner._loaded.model.config.quantization_config.load_in_4bit  # saving has not made it forget


def test_a_snapshot_of_perturbed_weights_is_what_the_learner_scores_and_leaves_no_trace(
    untied_model: Path, tmp_path: Path
) -> None:
    learner = trained(four_bit(untied_model))
    before = learner.score(SEQUENCE)[0]
    perturbed = learner.score(SEQUENCE, perturbation=3)[0]
    assert abs(perturbed - before).max() > 0.05
    learner.write_snapshot(str(tmp_path / "s.safetensors"), 2, perturbation=3)
    with learner.exported() as tensors:
        plain = {name: tensor.clone() for name, tensor in tensors.items()}
    written = load_file(tmp_path / "s.safetensors")
    assert [name for name, tensor in plain.items() if torch.equal(tensor, written[name])] == []
    assert learner.score(SEQUENCE)[0].tolist() == before.tolist()


def test_its_reference_is_the_rounded_model(untied_model: Path) -> None:
    learner = trained(four_bit(untied_model, beta=0.1))
    fresh = trained(four_bit(untied_model), steps=0)
    with learner._loaded.reference():
        assert learner.score(SEQUENCE)[0].tolist() == fresh.score(SEQUENCE)[0].tolist()


def test_it_goes_on_from_a_checkpoint_and_is_merged_from_one(untied_model: Path, tmp_path: Path) -> None:
    config = four_bit(untied_model, {"lora_target_modules": ("q_proj", "down_proj")})
    learner = trained(config)
    learner.save(str(tmp_path / "learner"))
    other = Learner(config, "cpu")
    other.load(str(tmp_path / "learner"))
    assert other.score(SEQUENCE)[0].tolist() == learner.score(SEQUENCE)[0].tolist()
    expected = logits(learner._loaded.model)
    policy = load_policy(config, tmp_path / "learner")
    assert not any(is_rounded(p) for p in policy.parameters())
    torch.testing.assert_close(logits(policy), expected, rtol=1e-5, atol=3e-5)
    save_merged(policy, tmp_path / "merged", "float32")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), expected, rtol=1e-5, atol=3e-5)


def test_bfloat16_weights_and_bfloat16_computing(untied_model: Path) -> None:
    config = four_bit(untied_model)
    config = config.model_copy(
        update={
            "model": config.model.model_copy(update={"dtype": "bfloat16"}),
            "training": config.training.model_copy(update={"bf16": True, "gradient_checkpointing": True}),
        }
    )
    learner = trained(config)
    weight = dict(learner._loaded.model.named_parameters())[NAME.replace(".weight", ".base_layer.weight")]
    assert in_full(weight).dtype == torch.bfloat16
    assert torch.isfinite(torch.from_numpy(learner.score(SEQUENCE)[0])).all()
