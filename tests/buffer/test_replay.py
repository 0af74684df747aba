"""The replay store: what it keeps, what it draws, and the weights that make up for drawing by priority."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgrpo.buffer.replay import ReplayStore, inclusion_probabilities, systematic_sample
from asyncgrpo.config.sections import ReplaySection
from asyncgrpo.types import Completion, Group, Prompt, Replayed, Sample


def group_of(group_id: int, rewards: tuple[float, ...] = (0.0, 1.0), version: int = 0) -> Group:
    samples = [
        Sample(
            completion=Completion(
                token_ids=(1, 2),
                behaviour_logprobs=(-1.0, -2.0),
                versions=(version, version + 1),
                finish_reason="stop",
                engine="e",
            ),
            text="",
            rewards={"r": reward},
            reward=reward,
        )
        for reward in rewards
    ]
    return Group(
        group_id=group_id,
        prompt=Prompt(prompt_id=f"0-{group_id}", epoch=0, row=group_id, prompt="", token_ids=(5,)),
        samples=tuple(samples),
        start_version=version,
        admitted_at=0.0,
        entered_at=0.0,
    )


def store_of(**settings: Any) -> ReplayStore:
    return ReplayStore(ReplaySection(replay_fraction=0.5, **settings))


def fill(store: ReplayStore, count: int, version: int = 0) -> None:
    for group_id in range(count):
        assert store.add(group_of(group_id, version=version), np.array([-0.5, 0.5]))


def draw(store: ReplayStore, count: int, version: int = 1, seed: int = 0) -> list[Replayed]:
    return store.draw(count, version, np.random.default_rng((seed, version)))


def ids(replayed: list[Replayed]) -> list[int]:
    return [item.group.group_id for item in replayed]


def test_beyond_its_capacity_the_oldest_go() -> None:
    store = store_of(replay_capacity=3)
    fill(store, 5)
    assert len(store) == 3
    assert store.collect_left() == [(0, 1), (1, 1)]
    assert store.collect_left() == []
    assert sorted(ids(draw(store, 9))) == [2, 3, 4]


def test_a_group_is_trained_by_so_many_steps_at_most_the_first_included() -> None:
    store = store_of(replay_max_uses=3)
    fill(store, 1)
    assert [draw(store, 1)[0].uses for _ in range(2)] == [1, 2]
    assert draw(store, 1) == []
    assert store.collect_left() == [(0, 3)]


def test_age_counts_from_the_oldest_token() -> None:
    store = store_of(replay_max_age=3)
    store.add(group_of(0, version=4), np.array([-0.5, 0.5]))
    assert ids(draw(store, 1, version=7)) == [0]
    assert draw(store, 1, version=8) == []
    assert store.collect_left() == [(0, 2)]
    assert len(store) == 0


def test_recency_takes_those_that_entered_last_and_weighs_them_as_they_are() -> None:
    store = store_of(replay_sampling="recency")
    fill(store, 5)
    replayed = draw(store, 2)
    assert ids(replayed) == [3, 4]
    assert [item.probability_weight for item in replayed] == [1.0, 1.0]


def test_uniform_draws_weigh_one() -> None:
    store = store_of()
    fill(store, 7)
    assert [item.probability_weight for item in draw(store, 3)] == pytest.approx([1.0] * 3, rel=1e-12)


def test_advantages_are_those_of_the_first_step_whatever_becomes_of_the_array() -> None:
    store = store_of()
    advantages = np.array([-0.5, 0.5])
    store.add(group_of(0), advantages)
    advantages[:] = 9.0
    (replayed,) = draw(store, 1)
    assert replayed.advantages.tolist() == [-0.5, 0.5] and replayed.advantages.dtype == np.float32


def test_groups_that_can_teach_nothing_are_not_kept() -> None:
    store = store_of()
    assert not store.add(group_of(0), np.zeros(2))
    assert len(store) == 0 and store.collect_left() == []
    # Pooled with fresh samples of the same prompt, one whose rewards were all equal may get advantages.
    assert store_of(replay_advantages="pooled").add(group_of(0), np.zeros(2))


def test_wrong_groups_are_refused() -> None:
    store = store_of()
    with pytest.raises(ValueError, match="group 0 has 2 samples, but 3 advantages"):
        store.add(group_of(0), np.ones(3))
    store.add(group_of(0), np.ones(2))
    with pytest.raises(ValueError, match="group 0 is in the replay store already"):
        store.add(group_of(0), np.ones(2))


@pytest.mark.parametrize("sampling", ["uniform", "advantage", "reward_variance", "recency"])
def test_the_same_seed_and_history_draw_the_same(sampling: str) -> None:
    def history(seed: int) -> list[tuple[int, int, float]]:
        store, seen = store_of(replay_sampling=sampling, replay_capacity=8, replay_max_age=5), []
        for version in range(12):
            seen += [
                (item.group.group_id, item.uses, item.probability_weight) for item in draw(store, 3, version, seed)
            ]
            for group_id in (2 * version, 2 * version + 1):
                store.add(group_of(group_id, (0.0, 1.0 + group_id % 3), version), np.array([-1.0, 1.0 + group_id % 5]))
        return seen

    assert history(1) == history(1)
    if sampling != "recency":
        assert history(1) != history(2)


def test_chances_follow_the_power_of_the_priority() -> None:
    # mean |advantage| 1, 4 and 9, roots 1, 2 and 3 of 6: chances 1/6, 2/6 and 3/6, weights 1 / (3 · chance)
    weights: dict[int, float] = {}
    for seed in range(40):
        store = store_of(replay_sampling="advantage", replay_exponent=0.5)
        for group_id, size in enumerate((1.0, 4.0, 9.0)):
            store.add(group_of(group_id), np.array([-size, size]))
        (item,) = draw(store, 1, seed=seed)
        weights[item.group.group_id] = item.probability_weight
    assert weights == pytest.approx({0: 2.0, 1: 1.0, 2: 2 / 3})


def test_the_correction_may_be_partial() -> None:
    store = store_of(replay_sampling="advantage", replay_exponent=1.0, replay_correction=0.5)
    for group_id, size in enumerate((1.0, 3.0)):
        store.add(group_of(group_id), np.array([-size, size]))
    (item,) = draw(store, 1)
    chance = {0: 1 / 4, 1: 3 / 4}[item.group.group_id]
    assert item.probability_weight == pytest.approx((1 / (2 * chance)) ** 0.5)


def test_variance_of_rewards_leaves_out_the_unscored_and_the_uniform() -> None:
    store = store_of(replay_sampling="reward_variance", replay_exponent=1.0)
    store.add(group_of(0, (1.0, 1.0)), np.array([0.5, 0.5]))  # as batch_mean has it: no variance, never drawn
    store.add(group_of(1, (0.0, 2.0, np.nan)), np.ones(3))  # variance 2
    store.add(group_of(2, (0.0, 4.0)), np.ones(2))  # variance 8
    assert sorted(ids(draw(store, 3))) == [1, 2]
    (item,) = draw(store, 1)
    assert item.probability_weight == pytest.approx({1: 1 / (2 * 0.2), 2: 1 / (2 * 0.8)}[item.group.group_id])


def test_what_exceeds_a_chance_of_one_goes_to_the_others() -> None:
    # 2 of powers 6, 1, 1: 2 · 6/8 > 1, so the first is certain and the others share what is left.
    assert inclusion_probabilities(np.array([6.0, 1.0, 1.0]), 2).tolist() == [1.0, 0.5, 0.5]
    # 3 of 10, 5, 1, 1: first the two large ones, then 1 of the two others.
    assert inclusion_probabilities(np.array([10.0, 5.0, 1.0, 1.0]), 3).tolist() == [1.0, 1.0, 0.5, 0.5]
    assert inclusion_probabilities(np.array([3.0, 1.0]), 2).tolist() == [1.0, 1.0]


@settings(max_examples=200, deadline=None)
@given(
    powers=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=40), share=st.floats(0.0, 1.0), seed=st.integers(0, 999)
)
def test_draws_are_exactly_as_many_and_distinct(powers: list[float], share: float, seed: int) -> None:
    count = max(1, round(share * len(powers)))
    chance = inclusion_probabilities(np.array(powers), count)
    assert (chance > 0).all() and (chance <= 1).all() and chance.sum() == pytest.approx(count)
    drawn = systematic_sample(chance, count, np.random.default_rng(seed))
    assert len(drawn) == len(set(drawn.tolist())) == count


def test_every_item_comes_as_often_as_its_chance_says() -> None:
    chance = inclusion_probabilities(np.array([8.0, 1.0, 2.0, 3.0, 4.0]), 3)
    rng, seen, rounds = np.random.default_rng(0), np.zeros(5), 20_000
    for _ in range(rounds):
        seen[systematic_sample(chance, 3, rng)] += 1
    np.testing.assert_allclose(seen / rounds, chance, atol=0.012)  # 3.5 standard errors


def test_weights_take_the_bias_of_priority_away() -> None:
    """Of a quantity that goes with the priority, the weighted mean of draws is the mean of all groups."""
    sizes = np.array([0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
    totals, counts, rounds = 0.0, 0, 4000
    for seed in range(rounds):
        store = store_of(replay_sampling="advantage", replay_exponent=1.0)
        for group_id, size in enumerate(sizes):
            store.add(group_of(group_id), np.array([-size, size]))
        for item in draw(store, 2, seed=seed):
            totals += item.probability_weight * float(sizes[item.group.group_id])
            counts += 1
    assert totals / counts == pytest.approx(sizes.mean(), rel=0.01)
    assert counts == 2 * rounds


@pytest.mark.parametrize("rule", ["recency", "uniform", "advantage", "reward_variance"])
def test_a_restored_store_draws_what_the_other_would_have(rule: str) -> None:
    section = ReplaySection(replay_capacity=6, replay_max_uses=3, replay_sampling=rule)  # type: ignore[arg-type]
    store, resumed = ReplayStore(section), ReplayStore(section)
    for group_id in range(8):
        store.add(group_of(group_id, (0.0, group_id + 1.0)), np.array([-1.0, group_id + 1.0], np.float32))
    store.draw(3, 1, np.random.default_rng(0))
    resumed.restore(store.state(), store.held())
    for version in (2, 3, 4):
        random_states = [np.random.default_rng(version) for _ in range(2)]
        one, other = (each.draw(3, version, at) for each, at in zip((store, resumed), random_states, strict=True))
        drawn = [[(r.group.group_id, r.uses, r.probability_weight) for r in draw] for draw in (one, other)]
        assert drawn[0] == drawn[1]
    assert resumed.collect_left() == store.collect_left() != []


def test_a_smaller_store_lets_the_oldest_go() -> None:
    store = ReplayStore(ReplaySection(replay_capacity=4))
    for group_id in range(4):
        store.add(group_of(group_id), np.array([-1.0, 1.0], np.float32))
    smaller = ReplayStore(ReplaySection(replay_capacity=2))
    smaller.restore(store.state(), store.held())
    assert smaller.collect_left() == [(0, 1), (1, 1)]
    assert [entry.group.group_id for entry in smaller.held()] == [2, 3]
