"""The verifier of tasks that `data.dataset: reasoning_gym:NAME` makes, as a reward function."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any

from asyncgrpo.errors import ConfigError

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def score_answer(
    completions: Sequence[Any],
    task: Sequence[str | None],
    task_arguments: Sequence[str | None],
    task_index: Sequence[int | None],
    **_: Any,
) -> list[float | None]:
    """Of each completion what the task's own verifier gives its answer: 0 to 1.

    The answer is what stands in the last `<answer>…</answer>`, else the whole completion. None for rows of another
    dataset of a mix. Raises ConfigError where reasoning_gym is missing.
    """
    scores: list[float | None] = []
    for completion, name, arguments, index in zip(completions, task, task_arguments, task_index, strict=True):
        if name is None or arguments is None or index is None:
            scores.append(None)
            continue
        tasks = _tasks(name, arguments)
        scores.append(float(tasks.score_answer(answer_of(completion), entry=tasks[index])))
    return scores


def answer_of(completion: Any) -> str:
    """Of a text, or of the messages of a chat."""
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    tagged = _TAGGED.findall(text)
    return str(tagged[-1] if tagged else text).strip()


@functools.lru_cache(maxsize=64)
def _tasks(name: str, arguments: str) -> Any:
    """The dataset that a row was made by."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise ConfigError(
            f"the tasks of {name} are scored by the package reasoning-gym: pip install 'asyncgrpo[tasks]'"
        ) from error
    return reasoning_gym.create_dataset(name, **json.loads(arguments))
