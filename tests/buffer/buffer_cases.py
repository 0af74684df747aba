"""Hand-made groups for the tests of buffer/."""

from collections.abc import Sequence

from asyncgrpo.types import Completion, Group, Prompt, Sample


def sample(reward: float = 0.0, versions: Sequence[int] = (0,)) -> Sample:
    completion = Completion(
        token_ids=tuple(range(len(versions))),
        behaviour_logprobs=(-1.0,) * len(versions),
        versions=tuple(versions),
        finish_reason="stop",
        engine="engine-0",
    )
    return Sample(completion=completion, text="", rewards={"f": reward}, reward=reward)


def group(group_id: int, *samples: Sample, start_version: int = 0, seconds: float = 0.0) -> Group:
    return Group(
        group_id=group_id,
        prompt=Prompt(prompt_id=f"0-{group_id}", epoch=0, row=group_id, prompt="p", token_ids=(1,)),
        samples=samples or (sample(0.0), sample(1.0)),
        start_version=start_version,
        admitted_at=10.0,
        entered_at=10.0 + seconds,
    )
