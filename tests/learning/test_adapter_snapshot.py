"""What is written for engines that swap adapters: the adapters alone, those that the learner computes with."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learning_cases import make_config, random_groups
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.batching import make_batch, shards
from asyncgrpo.learning.learner import Learner

SEQUENCES = [((5, 6, 7), (8, 9, 10, 11)), ((3,), (4, 200))]
SEED = 17


def learner_of(path: Path, steps: int = 0, **sections: dict[str, Any]) -> Learner:
    lora = {"lora_r": 4, "lora_alpha": 8} | sections.pop("lora", {})
    weights = {"transport": "lora"}
    config = make_config(str(path), lora=lora, weights=weights, training={"learning_rate": 1e-2}, **sections)
    learner = Learner(config, "cpu")
    for _ in range(steps):
        batch = make_batch(random_groups(learner.version), learner.version, config)
        learner.train(shards(batch, config, 1)[0])
    return learner


def written(learner: Learner, folder: Path, perturbation: int | None = None) -> Path:
    version = learner.version if perturbation is None else -1
    snapshot = learner.write_snapshot(str(folder / f"v{version}"), version, perturbation)
    assert snapshot.bytes == (Path(snapshot.path) / "adapter_model.safetensors").stat().st_size
    return Path(snapshot.path)


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


@torch.no_grad()
def scores(model: torch.nn.Module) -> list[np.ndarray]:
    found = []
    for prompt, completion in SEQUENCES:
        logprobs = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0].log_softmax(-1)
        rows = torch.arange(len(prompt) - 1, len(prompt) + len(completion) - 1)
        found.append(logprobs[rows, torch.tensor(completion)].numpy())
    return found


def far(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    return float(np.abs(np.concatenate(ours) - np.concatenate(theirs)).max())


@pytest.mark.parametrize("perturbation", [None, SEED])
def test_base_and_adapter_are_what_the_learner_scores_by(
    untied_model: Path, tmp_path: Path, perturbation: int | None
) -> None:
    learner = learner_of(untied_model, steps=2)
    folder = written(learner, tmp_path, perturbation)
    base = AutoModelForCausalLM.from_pretrained(untied_model).eval()
    without = scores(base)
    adapted = scores(PeftModel.from_pretrained(base, folder).eval())
    assert far(adapted, learner.score(SEQUENCES, perturbation)) < 1e-4
    assert far(adapted, without) > 0.05
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(untied_model)


def test_a_fresh_adapter_is_the_base_model(tied_model: Path, tmp_path: Path) -> None:
    learner = learner_of(tied_model)
    folder = written(learner, tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tied_model).eval()
    without = scores(base)
    assert far(scores(PeftModel.from_pretrained(base, folder).eval()), without) == 0.0
    assert far(without, learner.score(SEQUENCES)) < 1e-4


def test_perturbing_changes_every_adapter_and_nothing_else_and_takes_it_back(tied_model: Path, tmp_path: Path) -> None:
    learner = learner_of(tied_model, lora={"lora_target_modules": ("q_proj", "down_proj")})
    before = {name: p.detach().clone() for name, p in learner._loaded.model.named_parameters()}
    plain, perturbed = (tensors_in(written(learner, tmp_path, seed)) for seed in (None, SEED))
    with learner._perturbed(SEED):
        inside = {name: p.detach().clone() for name, p in learner._loaded.model.named_parameters()}
    after = dict(learner._loaded.model.named_parameters())
    assert plain.keys() == perturbed.keys()
    assert all(not torch.equal(plain[name], perturbed[name]) for name in plain)
    changed = {name for name in before if not torch.equal(before[name], inside[name])}
    assert changed == {name for name in before if "lora_" in name}
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_every_perturbed_adapter_changes_its_layer_by_half_of_its_weights(tied_model: Path) -> None:
    """Whatever rank and scale: so is the distance that the probe tells weights apart by."""
    for lora in ({"lora_r": 2, "lora_alpha": 64}, {"lora_r": 16, "lora_alpha": 1}):
        learner = learner_of(tied_model, lora=lora)
        layer = learner._loaded.model.get_submodule("model.layers.0.mlp.down_proj")
        with learner._perturbed(SEED):
            delta = layer.get_delta_weight("default").detach()
        ratio = float(delta.square().mean().sqrt() / layer.base_layer.weight.detach().square().mean().sqrt())
        assert ratio == pytest.approx(0.5, rel=0.25)


def test_an_adapter_has_the_engines_type(tied_model: Path, tmp_path: Path) -> None:
    stored = tensors_in(written(learner_of(tied_model, engines={"dtype": "bfloat16"}), tmp_path))
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}


def test_an_adapter_of_another_version_or_without_a_place_is_refused(tied_model: Path, tmp_path: Path) -> None:
    learner = learner_of(tied_model)
    with pytest.raises(LearnerError, match="a snapshot of version 3 was asked of a learner at version 0"):
        learner.write_snapshot(str(tmp_path / "v3"), 3)
    with pytest.raises(LearnerError, match=r"cannot write the adapter .*/gone/v0"):
        learner.write_snapshot(str(tmp_path / "gone" / "v0"), 0)
    assert list(tmp_path.iterdir()) == []
