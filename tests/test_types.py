"""A completion's arrays."""

import numpy as np
import pytest

from asyncgrpo.types import Completion, Group, Prompt, Sample


def completion(**changes: object) -> Completion:
    fields: dict[str, object] = dict(
        token_ids=(7, 9), behaviour_logprobs=(-0.5, -1.0), versions=(3, 4), finish_reason="stop", engine="e0"
    )
    return Completion(**{**fields, **changes})  # type: ignore[arg-type]


def test_any_sequences_become_read_only_arrays() -> None:
    made = completion()
    assert (made.token_ids.dtype, made.behaviour_logprobs.dtype, made.versions.dtype) == (
        np.int32,
        np.float32,
        np.int32,
    )
    assert len(made) == 2
    with pytest.raises(ValueError, match="read-only"):
        made.token_ids[0] = 1


@pytest.mark.parametrize(
    "change",
    [{"token_ids": (7, 8)}, {"behaviour_logprobs": (-0.5, -1.5)}, {"versions": (3, 3)}, {"finish_reason": "length"}],
)
def test_equal_means_every_token_is(change: dict[str, object]) -> None:
    assert completion() == completion(token_ids=np.array([7, 9]))
    assert completion() != completion(**change)


def test_a_completion_is_not_hashable() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        {completion()}


@pytest.mark.parametrize("versions", [(2, 4, 6), (6, 4, 2), (4, 2, 6)])
def test_the_oldest_token_makes_the_age_of_its_sample_and_group(versions: tuple[int, ...]) -> None:
    """Bug report F11: a sample that was cut into by two publishes passed for one of the newest version."""
    mixed, pure = (
        Sample(
            completion=completion(token_ids=range(3), behaviour_logprobs=(-1.0,) * 3, versions=each),
            text="",
            rewards={},
            reward=0.0,
        )
        for each in (versions, (5, 5, 5))
    )
    prompt = Prompt(prompt_id="0-0", epoch=0, row=0, prompt="p", token_ids=(1,))
    group = Group(
        group_id=0, prompt=prompt, samples=(pure, mixed), start_version=1, admitted_at=0.0, entered_at=0.0
    )  # fmt: skip
    assert (mixed.oldest_version, mixed.newest_version) == (2, 6)
    assert (pure.oldest_version, pure.newest_version) == (5, 5)
    assert (group.oldest_version, group.newest_version) == (2, 6)


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens, 1 log-probabilities and 2 versions"):
        completion(behaviour_logprobs=(-0.5,))
