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
    [
        {"token_ids": (7, 8)},
        {"behaviour_logprobs": (-0.5, -1.5)},
        {"versions": (3, 3)},
        {"finish_reason": "length"},
        {"behaviour_logprobs": (-0.5, 0.0), "versions": (3, 3), "sampled": (True, False)},
    ],
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
    with pytest.raises(ValueError, match="2 tokens, 1 log-probabilities, 2 versions and 2 marks"):
        completion(behaviour_logprobs=(-0.5,))
    with pytest.raises(ValueError, match="2 tokens, 2 log-probabilities, 2 versions and 1 marks"):
        completion(sampled=(True,))


def test_what_is_not_said_otherwise_was_sampled() -> None:
    assert completion().sampled.tolist() == [True, True]
    assert completion() == completion(sampled=(True, True))


def two_turns(**changes: object) -> Completion:
    fields: dict[str, object] = dict(
        token_ids=(7, 1, 2, 9, 3),
        behaviour_logprobs=(-0.5, 0.0, 0.0, -1.0, 0.0),
        versions=(3, 3, 3, 5, 5),
        sampled=(True, False, False, True, False),
    )
    return completion(**{**fields, **changes})


def test_tokens_between_turns_are_marked_and_leave_versions_alone() -> None:
    made = two_turns()
    assert (made.sampled.dtype, made.sampled_tokens, len(made)) == (np.bool_, 2, 5)
    sample = Sample(completion=made, text="", rewards={}, reward=0.0)
    assert (sample.oldest_version, sample.newest_version) == (3, 5)
    with pytest.raises(ValueError, match="read-only"):
        made.sampled[1] = True


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sampled": (False, False, False, True, False)}, "first token of a completion was not sampled"),
        ({"behaviour_logprobs": (-0.5, 0.0, -2.0, -1.0, 0.0)}, "token 2 was not sampled, but its behaviour_logprobs"),
        ({"behaviour_logprobs": (-0.5, float("nan"), 0, -1.0, 0)}, "token 1 was not sampled, but its behaviour_logp"),
        ({"versions": (3, 3, 4, 5, 5)}, "token 2 was not sampled, but its versions entry is 4"),
        ({"versions": (3, 3, 3, 5, 3)}, "token 4 was not sampled, but its versions entry is 3"),
    ],
)
def test_a_given_token_has_no_log_probability_and_no_version_of_its_own(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        two_turns(**change)
