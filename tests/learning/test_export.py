import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from learning_cases import make_config, random_groups, sequences
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.batching import make_batch, shards
from asyncgrpo.learning.export import export_tensors
from asyncgrpo.learning.learner import Learner
from asyncgrpo.learning.snapshot import write_safetensors

SEQUENCES = [((5, 6, 7), (8, 9, 10, 11)), ((3,), (4, 200))]


def trained(path: Path, lora_r: int = 0, **sections: dict) -> Learner:
    config = make_config(str(path), lora={"lora_r": lora_r}, training={"learning_rate": 1e-3}, **sections)
    learner = Learner(config, "cpu")
    learner.train(shards(make_batch(random_groups(), 0, config), config, 1)[0])
    return learner


def fresh_model(path: Path, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """A model built from the configuration alone, with exactly these weights."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
    result = model.load_state_dict(tensors, strict=False)
    assert result.unexpected_keys == []
    assert set(result.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(1, 12)[None]).logits


@pytest.mark.parametrize("lora_r", [0, 4])
@pytest.mark.parametrize("model", ["tied_model", "untied_model"])
def test_exported_weights_give_the_live_logits(model: str, lora_r: int, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(model)
    learner = trained(path, lora_r)
    live = logits(learner._loaded.model)
    assert (live - logits(AutoModelForCausalLM.from_pretrained(path))).abs().max() > 0.01  # training moved it
    tensors = export_tensors(learner._loaded.model)
    torch.testing.assert_close(logits(fresh_model(path, tensors)), live, rtol=1e-5, atol=3e-5)
    with safe_open(path / "model.safetensors", "pt") as file:
        assert set(tensors) == set(file.keys())
    assert ("lm_head.weight" in tensors) == (model == "untied_model")


def test_exporting_leaves_adapters_and_base_untouched(tied_model: Path) -> None:
    learner = trained(tied_model, lora_r=4)
    before = {name: p.clone() for name, p in learner._loaded.model.named_parameters()}
    export_tensors(learner._loaded.model)
    after = dict(learner._loaded.model.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)
    base = load_file(tied_model / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    assert torch.equal(after["model.layers.0.self_attn.q_proj.base_layer.weight"], base)


def test_a_snapshot_holds_the_exported_weights_layer_by_layer(untied_model: Path, tmp_path: Path) -> None:
    learner = trained(untied_model)
    snapshot = learner.write_snapshot(str(tmp_path / "v1.safetensors"), 1)
    stored = load_file(snapshot.path)
    tensors = export_tensors(learner._loaded.model)
    assert set(stored) == set(tensors)
    assert all(torch.equal(stored[name], tensor) for name, tensor in tensors.items())
    assert [path.name for path in tmp_path.iterdir()] == ["v1.safetensors"]
    order = [name.split(".")[2] if ".layers." in name else name for name in names_in_file_order(snapshot.path)]
    changes = [name for name, following in zip(order, [*order[1:], None], strict=True) if name != following]
    assert len(changes) == len(set(changes))
    assert snapshot.bytes == Path(snapshot.path).stat().st_size


def names_in_file_order(path: str) -> list[str]:
    data = Path(path).read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    header.pop("__metadata__")
    return sorted(header, key=lambda name: header[name]["data_offsets"])


def test_a_snapshot_has_the_engines_type(tied_model: Path, tmp_path: Path) -> None:
    learner = trained(tied_model, engines={"dtype": "bfloat16"})
    stored = load_file(learner.write_snapshot(str(tmp_path / "v1"), 1).path)
    tensors = export_tensors(learner._loaded.model)
    assert all(torch.equal(stored[name], tensor.bfloat16()) for name, tensor in tensors.items())


def test_a_later_step_does_not_change_an_earlier_snapshot(tied_model: Path, tmp_path: Path) -> None:
    learner = trained(tied_model)
    path = learner.write_snapshot(str(tmp_path / "v1"), 1).path
    before = Path(path).read_bytes()
    with safe_open(path, "pt") as file:
        mapped = file.get_tensor("model.norm.weight")
        learner.train(shards(make_batch(random_groups(1), 1, learner.config), learner.config, 1)[0])
        learner.write_snapshot(str(tmp_path / "v2"), 2)
        assert torch.equal(mapped, file.get_tensor("model.norm.weight"))
    assert Path(path).read_bytes() == before


def test_a_snapshot_of_another_version_is_refused(tied_model: Path, tmp_path: Path) -> None:
    with pytest.raises(LearnerError, match="version 0 was asked of a learner at version 1"):
        trained(tied_model).write_snapshot(str(tmp_path / "v0"), 0)


def test_too_little_room_is_said_before_writing(tmp_path: Path) -> None:
    enormous = torch.empty(1, dtype=torch.float32).expand(2**46)  # 256 TiB that do not exist
    with pytest.raises(LearnerError, match=r"snapshot of 281,4.* bytes does not fit into .* bytes free.*--shm-size"):
        write_safetensors(str(tmp_path / "v"), {"a": enormous}, torch.float32, {})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(LearnerError, match=r"cannot write the snapshot .*nowhere/v"):
        write_safetensors(str(tmp_path / "nowhere" / "v"), {}, torch.float32, {})


def test_types_that_are_not_floating_point_are_kept(tmp_path: Path) -> None:
    tensors = {"scalar": torch.tensor(3), "empty": torch.empty(0, 4), "view": torch.arange(6.0).reshape(2, 3).T}
    write_safetensors(str(tmp_path / "v"), tensors, torch.float16, {"format": "pt"})
    stored = load_file(tmp_path / "v")
    assert stored["scalar"].dtype == torch.int64
    assert stored["scalar"].item() == 3
    assert stored["empty"].shape == (0, 4)
    assert torch.equal(stored["view"], tensors["view"].half())


@pytest.mark.parametrize("lora_r", [0, 4])
@pytest.mark.parametrize("model", ["tied_model", "untied_model"])
def test_a_perturbed_snapshot_is_what_is_scored(
    model: str, lora_r: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(model)
    learner = trained(path, lora_r)
    before = [p.clone() for p in learner._loaded.model.parameters()]
    plain = np.concatenate(learner.score(SEQUENCES))
    perturbed = np.concatenate(learner.score(SEQUENCES, perturbation=7))
    again = np.concatenate(learner.score(SEQUENCES, perturbation=7))
    other = np.concatenate(learner.score(SEQUENCES, perturbation=8))
    stored = load_file(learner.write_snapshot(str(tmp_path / "probe"), 0, perturbation=7).path)
    assert all(torch.equal(p, q) for p, q in zip(before, learner._loaded.model.parameters(), strict=True))
    np.testing.assert_array_equal(np.concatenate(learner.score(SEQUENCES)), plain)
    np.testing.assert_array_equal(perturbed, again)
    assert np.abs(perturbed - plain).mean() > 1.0
    assert np.abs(perturbed - other).mean() > 1.0
    assert np.isfinite(perturbed).all()
    live = export_tensors(learner._loaded.model)
    unchanged = [name for name, tensor in stored.items() if not (tensor != live[name]).float().mean() > 0.9]
    assert unchanged == []
    model_of_snapshot = fresh_model(path, stored)
    for (prompt, completion), score in zip(SEQUENCES, learner.score(SEQUENCES, perturbation=7), strict=True):
        with torch.no_grad():
            logits_LV = model_of_snapshot(input_ids=torch.tensor([[*prompt, *completion]])).logits[0]
        logprobs_LV = torch.log_softmax(logits_LV, dim=-1).numpy()
        expected = [logprobs_LV[len(prompt) + t - 1, token] for t, token in enumerate(completion)]
        np.testing.assert_allclose(score, expected, atol=1e-4)


def test_bits_are_restored_when_scoring_fails(tied_model: Path) -> None:
    learner = trained(tied_model)
    before = [p.clone() for p in learner._loaded.model.parameters()]
    with pytest.raises(LearnerError, match="token id 100000 is outside"):
        learner.score([((100_000,), (5,))], perturbation=7)
    assert all(torch.equal(p, q) for p, q in zip(before, learner._loaded.model.parameters(), strict=True))


def test_scoring_covers_the_batch(tied_model: Path) -> None:
    learner = trained(tied_model)
    pairs = sequences(make_batch(random_groups(), 1, learner.config))
    assert [len(score) for score in learner.score(pairs)] == [len(completion) for _, completion in pairs]
