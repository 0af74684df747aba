"""The verifier of tasks that `data.dataset: reasoning_gym:NAME` makes.

Verifiers of the package evaluate answers as Python. They run in worker processes that can be killed, where an answer
can do little harm (`tasks_worker`).
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.builtin.base import Completions, arguments, text_of
from asyncgrpo.rewards.builtin.judged import Judged, LogMetric
from asyncgrpo.rewards.builtin.sandbox import demand_isolation
from asyncgrpo.rewards.builtin.workers import Lost, Workers, usual_count

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@arguments
class ReasoningGym(Judged):
    """What the task's own verifier gives the answer: 0 to 1; None for rows of another dataset of a mix.

    The answer is what stands in the last `<answer>…</answer>` of the completion, else the whole of it.
    """

    short = "reasoning_gym"

    deadline: PositiveFloat = 10.0
    """Seconds one answer may take; then its process is killed."""
    workers: PositiveInt | None = None
    """Worker processes, shared by all that ask for as many. Absent: half of the cores, at most 8."""
    require_isolation: bool = False
    """Refuse to run where answers cannot be kept from network, processes and files; else that is only warned of."""

    def columns(self) -> list[str]:
        """From them the very task is made again."""
        return ["task", "task_arguments", "task_index"]

    def check(self) -> None:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise ConfigError(f"reward {self.short!r} needs reasoning-gym; pip install 'asyncgrpo[tasks]'")
        if self.require_isolation:
            demand_isolation(self.short)

    def __call__(
        self,
        *,
        completions: Completions,
        task: Sequence[str | None],
        task_arguments: Sequence[str | None],
        task_index: Sequence[int | None],
        log_metric: LogMetric | None = None,
        **_: Any,
    ) -> list[float | None]:
        until = self.until()
        self.check()
        rows = enumerate(zip(completions, task, task_arguments, task_index, strict=True))
        questions = {
            place: {"task": name, "arguments": given, "index": index, "answer": answer_of(completion)}
            for place, (completion, name, given, index) in rows
            if name is not None and given is not None and index is not None
        }
        replies = _workers(self.workers).ask_all(list(questions.values()), self.deadline, until)
        scores: list[float | None] = [None] * len(completions)
        lost, whys, caught = Counter[str](), [f"deadline {self.deadline:g} s"], 0
        for place, reply in zip(questions, replies, strict=True):
            if isinstance(reply, Lost):
                lost[reply.kind] += 1
            elif "error" in reply:
                asked = questions[place]
                raise RuntimeError(f"task {asked['task']!r}, number {asked['index']}, is not made: {reply['error']}")
            elif "lost" in reply:
                lost[reply["lost"]] += 1
                whys += [reply["why"]] if reply["why"] and reply["why"] not in whys else []
            else:
                scores[place] = reply["value"]
                caught += reply["caught"]
        if log_metric is not None and questions:
            log_metric(f"{self.short}/caught", caught / len(questions))
        self.tell_lost(lost, "; ".join(whys), log_metric)
        return scores


def answer_of(completion: Any) -> str:
    """Of a text, or of the messages of a chat."""
    text = text_of(completion)
    tagged = _TAGGED.findall(text)
    return str(tagged[-1] if tagged else text).strip()


def _workers(count: int | None) -> Workers:
    return _shared(usual_count() if count is None else count)


@functools.cache
def _shared(count: int) -> Workers:
    return Workers(Path(__file__).with_name("tasks_worker.py"), count, confine=True)
