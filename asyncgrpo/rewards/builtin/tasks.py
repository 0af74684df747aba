"""The verifier of tasks that `data.dataset: reasoning_gym:NAME` makes."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Sequence
from typing import Any

from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.builtin.base import Builtin, Completions, arguments, text_of

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@arguments
class ReasoningGym(Builtin):
    """What the task's own verifier gives the answer: 0 to 1; None for rows of another dataset of a mix.

    The answer is what stands in the last `<answer>…</answer>` of the completion, else the whole of it.
    """

    short = "reasoning_gym"

    def columns(self) -> list[str]:
        """From them the very task is made again."""
        return ["task", "task_arguments", "task_index"]

    def check(self) -> None:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise ConfigError(f"reward {self.short!r} needs reasoning-gym; pip install 'asyncgrpo[tasks]'")

    def __call__(
        self,
        *,
        completions: Completions,
        task: Sequence[str | None],
        task_arguments: Sequence[str | None],
        task_index: Sequence[int | None],
        **_: Any,
    ) -> list[float | None]:
        self.check()
        rows = zip(completions, task, task_arguments, task_index, strict=True)
        return [_score(completion, name, given, index) for completion, name, given, index in rows]


def answer_of(completion: Any) -> str:
    """Of a text, or of the messages of a chat."""
    text = text_of(completion)
    tagged = _TAGGED.findall(text)
    return str(tagged[-1] if tagged else text).strip()


def _score(completion: Any, name: str | None, given: str | None, index: int | None) -> float | None:
    if name is None or given is None or index is None:
        return None
    tasks = _tasks(name, given)
    return float(tasks.score_answer(answer_of(completion), entry=tasks[index]))


@functools.lru_cache(maxsize=64)
def _tasks(name: str, given: str) -> Any:
    """The dataset that a row was made by."""
    import reasoning_gym

    return reasoning_gym.create_dataset(name, **json.loads(given))
