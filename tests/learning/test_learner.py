import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from learning_cases import GRADIENT_STEPS, make_config, make_group, make_sample, random_groups, sequences
from resume_cases import differences, everything, resume_config
from transformers import AutoModelForCausalLM

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError, LearnerError, UpdatesNotFinite
from asyncgrpo.learning.batching import Shard, make_batch, shards
from asyncgrpo.learning.export import export_tensors
from asyncgrpo.learning.learner import Learner
from asyncgrpo.types import Batch, Group, StepReport


def step(learner: Learner, groups: list[Group]) -> tuple[StepReport, Batch]:
    batch = make_batch(groups, learner.version, learner.config)
    return learner.train(shards(batch, learner.config, 1)[0]), batch


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in export_tensors(learner._loaded.model).items()}


def plain_scores(path: Path, batch: Batch, temperature: float) -> list[np.ndarray]:
    """One sequence at a time through transformers, nothing shared with the learner's own path."""
    model = AutoModelForCausalLM.from_pretrained(path)
    scores = []
    for prompt, completion in sequences(batch):
        with torch.no_grad():
            logits_LV = model(input_ids=torch.tensor([prompt + completion])).logits[0]
        logprobs_LV = torch.log_softmax(logits_LV.float() / temperature, dim=-1)
        scores.append(np.array([logprobs_LV[len(prompt) + t - 1, token] for t, token in enumerate(completion)]))
    return scores


@pytest.mark.parametrize("token_budget", [1, 24, 256])
def test_scores_are_those_of_a_plain_forward_token_by_token(tied_model: Path, token_budget: int) -> None:
    config = make_config(str(tied_model), generation={"temperature": 0.5}, learner={"token_budget": token_budget})
    batch = make_batch(random_groups(), 0, config)
    scores = Learner(config, "cpu").score(sequences(batch))
    for score, expected in zip(scores, plain_scores(tied_model, batch, 0.5), strict=True):
        assert score.dtype == np.float32
        np.testing.assert_allclose(score, expected, atol=1e-5)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_the_first_ratio_is_exactly_one_and_the_second_pass_differs(tied_model: Path, minibatches: int) -> None:
    training = {"num_iterations": 2, "num_minibatches": minibatches, "learning_rate": 1e-4}
    learner = Learner(make_config(str(tied_model), training=training, learner={"token_budget": 24}), "cpu")
    batch = make_batch(random_groups(), 0, learner.config)
    shard = shards(batch, learner.config, 1)[0]
    behaviour = shard.batch.behaviour_logprobs.tobytes()
    report = learner.train(shard)
    assert report.version == learner.version == 1
    assert report.metrics["optimiser/updates"] == 2 * minibatches
    assert report.metrics["ratio/first_update_max_deviation"] == 0.0
    assert report.metrics["ratio/last_update_max_deviation"] > 1e-4
    assert report.metrics["kl/proximal_current_k3"] > 0.0
    assert shard.batch.behaviour_logprobs.tobytes() == behaviour
    assert set(report.seconds) == {"proximal", "forward_backward", "optimiser", "total"}


def test_proximal_log_probabilities_are_those_from_before_the_step(tied_model: Path) -> None:
    training = {"num_iterations": 2, "num_minibatches": 2, "learning_rate": 1e-3}
    learner = Learner(make_config(str(tied_model), training=training, learner={"token_budget": 24}), "cpu")
    groups = random_groups()
    before = learner.score(sequences(make_batch(groups, 0, learner.config)))
    report, batch = step(learner, groups)
    assert report.proximal_logprobs is not None
    assert report.proximal_logprobs.dtype == np.float32
    np.testing.assert_allclose(report.proximal_logprobs, np.concatenate(before), atol=1e-5)
    masked = dataclasses.replace(
        make_batch(groups, 1, learner.config), loss_mask=np.arange(len(batch.completion_tokens)) % 3 > 0
    )
    found = learner.train(shards(masked, learner.config, 1)[0]).proximal_logprobs
    assert found is not None
    assert np.isnan(found).tolist() == (~masked.loss_mask).tolist()


def test_an_anchor_that_is_the_behaviour_policy_has_no_log_probabilities_of_its_own(tied_model: Path) -> None:
    objective = {"proximal_anchor": "behaviour", "importance_sampling_correction": "none"}
    report, _ = step(Learner(make_config(str(tied_model), objective=objective), "cpu"), random_groups())
    assert report.proximal_logprobs is None


@pytest.mark.parametrize("settings", [{"bf16": True}, {"gradient_checkpointing": True}])
def test_the_first_ratio_is_exactly_one_in_other_precision_and_memory_modes(tied_model: Path, settings: dict) -> None:
    config = make_config(str(tied_model), training={"num_iterations": 2, **settings}, learner={"token_budget": 24})
    report, _ = step(Learner(config, "cpu"), random_groups())
    assert report.metrics["ratio/first_update_max_deviation"] == 0.0
    assert report.metrics["ratio/last_update_max_deviation"] > 0.0


def test_behaviour_equal_to_the_learner_gives_weight_one_at_any_temperature(tied_model: Path) -> None:
    config = make_config(str(tied_model), generation={"temperature": 0.5})
    learner = Learner(config, "cpu")
    batch = make_batch(random_groups(), 0, config)
    engine = np.concatenate(plain_scores(tied_model, batch, 0.5)).astype(np.float32)
    batch = dataclasses.replace(batch, behaviour_logprobs=engine)
    report = learner.train(shards(batch, config, 1)[0])
    assert report.metrics["importance_weight/mean"] == pytest.approx(1.0, abs=1e-4)
    assert report.metrics["importance_weight/max"] == pytest.approx(1.0, abs=1e-4)
    assert report.metrics["importance_weight/ess"] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dapo", "dr_grpo"])
def test_micro_batches_do_not_change_the_update(tied_model: Path, loss_type: str) -> None:
    results = []
    for budget in (1, 24, 40):
        config = make_config(
            str(tied_model),
            training={"num_minibatches": 2, "num_iterations": 2, **GRADIENT_STEPS},
            objective={"loss_type": loss_type, "beta": 0.1},
            learner={"token_budget": budget},
        )
        learner = Learner(config, "cpu")
        results.append((step(learner, random_groups())[0].metrics, weights(learner)))
    for metrics, tensors in results[1:]:
        assert metrics["loss"] == pytest.approx(results[0][0]["loss"], rel=1e-5, abs=1e-6)
        assert metrics["grad_norm"] == pytest.approx(results[0][0]["grad_norm"], rel=1e-4)
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, results[0][1][name], rtol=0, atol=1e-6)


def test_the_gradient_norm_does_not_grow_with_passes_or_minibatches_of_equal_groups(tied_model: Path) -> None:
    group = random_groups(groups=1)[0]
    groups = [dataclasses.replace(group, group_id=i) for i in range(4)]
    norms = []
    for minibatches, iterations, budget in [(1, 1, 256), (2, 1, 16), (4, 2, 1), (1, 4, 24)]:
        training = {
            "groups_per_step": 4,
            "num_minibatches": minibatches,
            "num_iterations": iterations,
            "learning_rate": 1e-12,
        }
        config = make_config(str(tied_model), training=training, learner={"token_budget": budget})
        norms.append(step(Learner(config, "cpu"), groups)[0].metrics["grad_norm"])
    np.testing.assert_allclose(norms, norms[0], rtol=1e-4)


def test_a_positive_advantage_makes_its_tokens_likelier(tied_model: Path) -> None:
    learner = Learner(make_config(str(tied_model), training={"learning_rate": 1e-4}), "cpu")
    groups = random_groups()
    batch = make_batch(groups, 0, learner.config)
    pairs = sequences(batch)
    before = np.array([score.sum() for score in learner.score(pairs)])
    step(learner, groups)
    after = np.array([score.sum() for score in learner.score(pairs)])
    assert np.dot(after - before, batch.advantages) > 0


def test_fully_masked_and_empty_batches_leave_everything_and_are_counted(tied_model: Path) -> None:
    learner = Learner(make_config(str(tied_model), objective={"mask_truncated_completions": True}), "cpu")
    before = weights(learner)
    truncated = [make_sample([1, 2, 3], float(i), finish_reason="length") for i in range(4)]
    empty = [make_sample([], float(i)) for i in range(4)]
    report, _ = step(learner, [make_group(0, truncated), make_group(1, empty)])
    assert report.version == 1
    assert report.metrics["loss"] == report.metrics["grad_norm"] == 0.0
    assert report.metrics["samples/untrained"] == 8
    assert report.metrics["optimiser/skipped_updates"] == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(learner).items())


def test_empty_completions_among_others_change_only_the_count(tied_model: Path) -> None:
    samples = [make_sample([5, 6], 1.0), make_sample([], 0.0), make_sample([7], 0.5), make_sample([8, 9, 1], 2.0)]
    learner = Learner(make_config(str(tied_model), objective={"loss_type": "bnpo"}), "cpu")
    report, _ = step(learner, [make_group(0, samples), make_group(1, samples)])
    assert report.metrics["samples/untrained"] == 2
    assert report.metrics["tokens/trained"] == 12
    assert np.isfinite(report.metrics["loss"])
    assert report.metrics["grad_norm"] > 0


def spoilt(learner: Learner, minibatch: int = 0) -> Shard:
    """A step for the learner's version in which one sample of a minibatch has a log-probability that is none."""
    batch = make_batch(random_groups(groups=learner.config.training.groups_per_step), learner.version, learner.config)
    shard = shards(batch, learner.config, 1)[0]
    first = int(shard.members(minibatch)[0])
    shard.batch.behaviour_logprobs[shard.batch.completion_lengths[:first].sum()] = np.nan
    return shard


def test_a_loss_that_is_not_finite_names_the_step_and_leaves_the_weights(tied_model: Path) -> None:
    learner = Learner(make_config(str(tied_model), training={"max_skipped_updates": 0}), "cpu")
    before = everything(learner)
    with pytest.raises(
        UpdatesNotFinite, match=r"step 0, update 1: loss is nan, gradient norm is nan; lower training\.learn"
    ):
        learner.train(spoilt(learner))
    assert differences(everything(learner), before) == []


def test_an_update_that_is_not_finite_is_skipped_and_the_step_goes_on(tied_model: Path) -> None:
    """Two minibatches, two passes; the schedule moves by the two updates that were made."""
    config = resume_config(str(tied_model), "full", "cosine", "fp32")
    learner, clean = Learner(config, "cpu"), Learner(config, "cpu")
    report = learner.train(spoilt(learner, minibatch=1))
    assert [(s.update, s.minibatch) for s in report.skipped] == [(2, 1), (4, 1)]
    assert all(np.isnan(s.loss) and np.isnan(s.gradient_norm) for s in report.skipped)
    assert report.updates_skipped == 2
    assert report.metrics["optimiser/updates"] == 2
    assert report.metrics["optimiser/nonfinite_updates"] == 2
    assert report.metrics["optimiser/skipped_updates"] == 0
    assert all(np.isfinite(value) for value in report.metrics.values())
    assert learner._updates.schedule.last_epoch == 2
    masked = spoilt(clean, minibatch=1)  # as if its tokens had been left out, which is not an update either
    masked.batch.loss_mask[np.repeat(masked.minibatch_of_sample == 1, masked.batch.completion_lengths)] = False
    masked = dataclasses.replace(masked, sizes=(masked.sizes[0], dataclasses.replace(masked.sizes[1], tokens=0)))
    clean.train(masked)
    assert set(differences(everything(learner), everything(clean))) <= {"counters"}


def test_updates_skipped_in_a_row_stop_the_run_and_one_that_is_made_starts_anew(tied_model: Path) -> None:
    learner = Learner(make_config(str(tied_model), training={"max_skipped_updates": 2, "num_iterations": 3}), "cpu")
    before = everything(learner)
    for version in (1, 2):
        report = learner.train(spoilt(learner))
        assert (report.version, report.updates_skipped) == (version, 3)  # one minibatch, left out of later passes
        assert np.isnan(report.metrics["loss"]) and np.isnan(report.metrics["grad_norm"])
        assert learner._updates.skipped_in_a_row == version
    assert set(differences(everything(learner), before)) == {"counters"}
    step(learner, random_groups())
    assert learner._updates.skipped_in_a_row == 0
    for _ in range(2):
        learner.train(spoilt(learner))
    before = everything(learner)
    with pytest.raises(
        UpdatesNotFinite, match=r"step 5, update 1: loss is nan.* \(3 updates in a row; training\.max_skip"
    ):
        learner.train(spoilt(learner))
    assert differences(everything(learner), before) == []


def test_want_of_memory_names_what_bounds_it(tied_model: Path) -> None:
    learner = Learner(make_config(str(tied_model), learner={"token_budget": 4000}), "cpu")

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    learner._updates.policy.register_forward_pre_hook(fail)
    with pytest.raises(LearnerError, match=r"learner\.token_budget=4000; lower it, .*Tried to allocate 2 GiB"):
        step(learner, random_groups())


def test_a_prompt_without_tokens_is_refused(tied_model: Path) -> None:
    learner = Learner(make_config(str(tied_model)), "cpu")
    with pytest.raises(LearnerError, match="prompt of 0 tokens"):
        learner.score([((), (1, 2))])


@pytest.mark.parametrize("lora_r", [0, 4])
def test_the_reference_is_the_initial_model(tied_model: Path, lora_r: int) -> None:
    config = make_config(str(tied_model), objective={"beta": 0.1}, lora={"lora_r": lora_r})
    learner = Learner(config, "cpu")
    first, _ = step(learner, random_groups())
    assert first.metrics["kl/current_reference_k3"] == pytest.approx(0.0, abs=1e-9)
    second, _ = step(learner, random_groups(seed=1))
    assert second.metrics["kl/current_reference_k3"] > 1e-7


def test_learning_rate_follows_the_schedule_per_update(tied_model: Path) -> None:
    training = {
        "num_iterations": 2,
        "max_steps": 2,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "linear",
        "warmup_steps": 2,
    }
    learner = Learner(make_config(str(tied_model), training=training), "cpu")
    # updates at 0, 1/2 (warm-up), then 2/2, 1/2 of the peak; a step reports its last update's
    rates = [step(learner, random_groups(seed))[0].metrics["learning_rate"] for seed in range(2)]
    assert rates == pytest.approx([0.5e-3, 0.5e-3])


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"lr_scheduler_type": "cosine", "max_steps": -1}, "needs the number of steps"),
    ],
)
def test_schedules_that_cannot_be_are_refused(tied_model: Path, training: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Learner(make_config(str(tied_model), training=training), "cpu")


@pytest.mark.parametrize("lora_r", [0, 4])
def test_a_saved_model_loads_and_gives_the_same_logits(untied_model: Path, tmp_path: Path, lora_r: int) -> None:
    learner = Learner(make_config(str(untied_model), lora={"lora_r": lora_r}), "cpu")
    _, batch = step(learner, random_groups())
    learner.save_model(str(tmp_path / "saved"))
    for score, expected in zip(
        learner.score(sequences(batch)), plain_scores(tmp_path / "saved", batch, 1.0), strict=True
    ):
        np.testing.assert_allclose(score, expected, rtol=1e-5, atol=1e-5)


def test_whoever_may_read_a_saved_models_configuration_may_read_its_weights(untied_model: Path, tmp_path: Path) -> None:
    Learner(make_config(str(untied_model)), "cpu").save_model(str(tmp_path))
    modes = {file.name: file.stat().st_mode for file in tmp_path.iterdir()}
    assert "model.safetensors" in modes
    assert len(set(modes.values())) == 1


STEP_IN_ANOTHER_PROCESS = """
import sys
from learning_cases import make_config, random_groups
from asyncgrpo.learning.batching import make_batch, shards
from asyncgrpo.learning.learner import Learner
learner = Learner(make_config(sys.argv[1]), "cpu")
batch = make_batch(random_groups(), 0, learner.config)
print(learner.train(shards(batch, learner.config, 1)[0]).metrics["grad_norm"])
"""


def test_a_launchers_environment_changes_nothing(tied_model: Path) -> None:
    """As under `accelerate launch` or torchrun: accumulation must not divide the loss, and nobody is waited for."""
    report, _ = step(Learner(make_config(str(tied_model)), "cpu"), random_groups())
    launcher = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "8", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", STEP_IN_ANOTHER_PROCESS, str(tied_model)],
        env={**os.environ, **launcher, **address},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(report.metrics["grad_norm"], rel=1e-6)


def test_a_trained_model_is_the_same_every_time(tied_model: Path) -> None:
    def train(config: RunConfig) -> dict[str, torch.Tensor]:
        learner = Learner(config, "cpu")
        step(learner, random_groups())
        return weights(learner)

    config = make_config(str(tied_model), lora={"lora_r": 2}, training={"num_iterations": 2})
    first, second = train(config), train(config)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
