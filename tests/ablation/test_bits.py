import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kind_cases import make_run
from scipy.stats import binom

from asyncgrpo.ablation.design.arms import Run
from asyncgrpo.ablation.design.study import Budget
from asyncgrpo.ablation.kinds import bits
from asyncgrpo.ablation.kinds.bit_policy import BitPolicies, log_probabilities
from asyncgrpo.ablation.randomness import Purpose, random_of
from asyncgrpo.errors import ConfigError

BASE: dict[str, Any] = {
    "engines": {"devices": ["cpu"]},
    "learner": {"mode": "inline", "devices": ["cpu"]},
    "generation": {"num_generations": 16},
    "training": {"groups_per_step": 1, "learning_rate": 0.05, "max_grad_norm": 1e9},
    "objective": {"gate": "none"},
    "bits": {"bits": 8, "fraction": 0.75, "seeds_together": 4},
}
WEIGHTS = {
    "token": {"objective.importance_sampling_correction": "token_truncate"},
    "geometric": {
        "objective.importance_sampling_correction": "geometric_truncate",
        "objective.importance_sampling_min": 1e-8,
    },
    "sequence": {"objective.importance_sampling_correction": "sequence_truncate"},
}
OFF = {"objective.importance_sampling_cap": 1e9}


def bit_run(settings: dict[str, Any] | None = None, **more: Any) -> Run:
    return make_run(settings or {"bits.staleness": 0}, kind="bits", base=BASE, **more)


def policies(settings: dict[str, Any] | None = None, seeds: range = range(4)) -> BitPolicies:
    run = bit_run(settings)
    return BitPolicies(run.config(), run.own(), seeds, run.stream)


def test_the_score_is_the_exact_chance_of_a_reward() -> None:
    made = policies()
    assert made.needed == 6
    np.testing.assert_allclose(made.scores_S(), binom.sf(5, 8, 0.5), atol=1e-12)
    with torch.no_grad():
        made._logits_SH[1] = 1.5
        made._logits_SH[2] = torch.linspace(-1.0, 2.0, 8)
    right = torch.tensor(1.5).sigmoid().item()
    assert made.scores_S()[1] == pytest.approx(binom.sf(5, 8, right), abs=1e-6)
    drawn = np.random.default_rng(0).random((200_000, 8)) < torch.linspace(-1.0, 2.0, 8).sigmoid().numpy()
    assert made.scores_S()[2] == pytest.approx((drawn.sum(axis=1) >= 6).mean(), abs=0.005)


def test_log_probabilities_are_of_the_bit_drawn() -> None:
    drawn = torch.tensor([[[True, False], [False, False]]])
    logp = log_probabilities(torch.tensor([[0.0, 2.0]]), drawn)
    expected = [[np.log(0.5), -np.log1p(np.exp(2.0))], [np.log(0.5), -np.log1p(np.exp(2.0))]]
    np.testing.assert_allclose(logp.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_gradient_is_that_of_the_formula(weight: str, staleness: int) -> None:
    """d/dθ of -sum_b A_b w_b sum_h log π(x_bh) / (N H), by hand; the samples are those of K versions before."""
    made = policies({**WEIGHTS[weight], **OFF, "bits.staleness": staleness})
    logits = [made._logits_SH.detach().clone().double()]
    seen: dict[str, torch.Tensor] = {}

    def keep(gradient: torch.Tensor) -> None:
        seen["gradient"] = gradient.clone()

    made._logits_SH.register_hook(keep)
    for version in range(5):
        made.step()
        behaviour, current = logits[max(0, version - staleness)], logits[version]
        for seed in range(4):
            uniform = random_of(Purpose.SAMPLING, seed, version=version).random((16, 8))
            drawn = torch.from_numpy(uniform) < behaviour[seed].sigmoid()
            rewards = (drawn.sum(dim=1) >= 6).double()
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4) if rewards.std() > 0 else rewards * 0
            sign = drawn.double() * 2 - 1
            log_ratio = torch.nn.functional.logsigmoid(sign * current[seed]) - torch.nn.functional.logsigmoid(
                sign * behaviour[seed]
            )
            level = {
                "token": log_ratio,
                "geometric": log_ratio.mean(dim=1, keepdim=True).expand_as(log_ratio),
                "sequence": log_ratio.sum(dim=1, keepdim=True).expand_as(log_ratio),
            }[weight]
            slope = drawn.double() - current[seed].sigmoid()
            expected = -(advantages[:, None] * level.exp() * slope).sum(dim=0) / (16 * 8)
            np.testing.assert_allclose(seen["gradient"][seed].numpy(), expected.numpy(), atol=1e-6)
        logits.append(made._logits_SH.detach().clone().double())
    assert (logits[-1] - logits[0]).abs().max() > 0.05


def test_a_seed_does_not_depend_on_those_beside_it() -> None:
    together, alone = policies(), policies(seeds=range(2, 3))
    for _ in range(6):
        step, own = together.step(), alone.step()
        assert step.rewards_S[2] == own.rewards_S[0]
    np.testing.assert_allclose(together.scores_S()[2], alone.scores_S()[0], rtol=1e-6)
    assert len(set(together.scores_S().tolist())) == 4


def records_of(
    folder: Path, seed: int = 0, settings: dict[str, Any] | None = None, **more: Any
) -> list[dict[str, Any]]:
    run, found = bit_run(settings, seed=seed, **more), []
    own = folder / "runs" / run.key
    own.mkdir(parents=True, exist_ok=True)
    bits.run(run, own, lambda record: found.append(dict(record)))
    return found


def test_a_run_reports_every_step_of_its_seed_and_the_block_is_computed_once(tmp_path: Path) -> None:
    first, second = records_of(tmp_path), records_of(tmp_path, seed=1)
    assert [record["step"] for record in first] == [0, 1, 2, 3, 4]
    assert [record["samples"] for record in first] == [0, 16, 32, 48, 64]
    assert [record["tokens"] for record in first] == [0, 128, 256, 384, 512]
    assert [record["score"] is None for record in first] == [False, True, False, True, False]
    assert first[0]["score"] == second[0]["score"] == pytest.approx(binom.sf(5, 8, 0.5))
    assert first[4]["score"] != second[4]["score"]
    assert len(list((tmp_path / "together").glob("*/*.json"))) == 4
    curve = next((tmp_path / "together").glob("*/1.json"))
    curve.write_text(json.dumps([{"step": 0}]))
    assert records_of(tmp_path, seed=1) == [{"step": 0}]  # found, not computed


def test_a_budget_of_seconds_is_refused(tmp_path: Path) -> None:
    run = dataclasses.replace(bit_run(), budget=Budget(seconds=5.0))
    with pytest.raises(ConfigError, match=r"budget\.seconds=5"):
        bits.run(run, tmp_path, lambda record: None)


def test_what_is_not_counted_trains_all_the_same() -> None:
    stale = {**WEIGHTS["token"], **OFF, "bits.staleness": 1}
    counted, not_counted = policies(stale), policies(stale)
    for _ in range(4):
        full, empty = counted.step(), not_counted.step(counted=False)
        assert full.counts.total("tokens") == 4 * 16 * 8 and empty.counts.total("tokens") == 0.0
    assert torch.equal(counted._logits_SH, not_counted._logits_SH)


def test_blocks_of_other_settings_or_streams_are_others(tmp_path: Path) -> None:
    plain = records_of(tmp_path)
    assert records_of(tmp_path, settings={"bits.staleness": 2})[4]["score"] != plain[4]["score"]
    assert records_of(tmp_path, stream=1)[4]["score"] != plain[4]["score"]
    assert records_of(tmp_path, seed=5)[4]["score"] != plain[4]["score"]
    assert len(list((tmp_path / "together").glob("*/*.json"))) == 16


def test_metrics_are_of_the_seed_alone(tmp_path: Path) -> None:
    stale = {**WEIGHTS["sequence"], **OFF, "bits.staleness": 2}
    alone = {**stale, "bits.seeds_together": 1}
    for seed in (0, 3):
        mine = records_of(tmp_path, seed=seed, settings=stale, steps=6)[6]
        own = records_of(tmp_path, seed=seed, settings=alone, steps=6)[6]
        for name in ("importance_weight_effective_ratio", "policy_kl_nats/behaviour_proximal", "gradient_norm"):
            assert mine[name] == pytest.approx(own[name], rel=1e-4)
        assert mine["importance_weight_effective_ratio"] < 1.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"training.num_iterations": 2}, r"training\.num_iterations=2"),
        ({"training.groups_per_step": 2}, r"training\.groups_per_step=2"),
        ({"objective.beta": 0.1}, r"objective\.beta=0\.1"),
        ({"objective.gate": "m2po"}, r"objective\.gate=m2po"),
    ],
)
def test_settings_without_a_meaning_are_refused(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        records_of(tmp_path, settings=change)
