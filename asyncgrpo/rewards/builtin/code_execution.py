"""Does the code in a completion pass its tests? It runs in a sandbox (`sandbox`)."""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

from pydantic import PositiveFloat, PositiveInt

from asyncgrpo.concurrency import start_job
from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.builtin.base import Builtin, Completions, arguments, text_of
from asyncgrpo.rewards.builtin.judged import NO_LIMIT, WITHIN_CALL, Judged, LogMetric
from asyncgrpo.rewards.builtin.sandbox import Limits, Ran, demand_isolation, run_tests
from asyncgrpo.rewards.values import BadValue
from asyncgrpo.user_code.texts import brief

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = ("python", "py", "python3")
MEBIBYTE = 1 << 20


def code_in(text: str) -> str:
    """The last fenced block of Python, else the last of no language, else the whole text."""
    blocks: list[tuple[str, str]] = [(language.lower(), code) for language, code in _FENCE.findall(text)]
    for languages in (_PYTHON, ("",)):
        if found := [code for language, code in blocks if language in languages]:
            return found[-1]
    return "" if blocks else text


@arguments
class CodeExecution(Judged):
    """The share of its tests that the completion's code passes; None for a row without tests.

    When the time of the call is up, code of which a test was late has failed those that are left; code that only had to
    wait, or has many tests, is not scored.
    """

    short = "code_execution"

    answer_column: str = "tests"
    """The dataset's column with the tests: Python as `assert add(1, 2) == 3`, in one text or a list, each run after the
    code; or a list of {"input": …, "output": …}, where the code is a program that reads and prints."""
    setup_column: str | None = None
    """A column with Python that is put before the code, as imports."""
    score: Literal["share", "all"] = "share"
    """The share of tests that pass, or 1 only if all do."""
    deadline: PositiveFloat = 5.0
    """Seconds a test may take."""
    memory_mib: PositiveInt = 512
    """Memory of a test."""
    disk_mib: PositiveInt = 16
    """What a test may write."""
    max_files: PositiveInt = 64
    """Files a test may have open."""
    max_processes: PositiveInt = 16
    """Processes and threads a test may have, where the kernel counts them for the test alone."""
    workers: PositiveInt | None = None
    """Sandboxes at once, shared by all rewards that ask for as many. Absent: half of the cores."""
    require_isolation: bool = False
    """Refuse to run where the code cannot be kept from network, processes and files; else that is only warned of."""

    def columns(self) -> list[str]:
        return [*super().columns(), *([self.setup_column] if self.setup_column else [])]

    def bound(self, *, max_completion_length: int, timeout: float) -> Builtin:
        limit = self.call_timeout or WITHIN_CALL * timeout
        if self.deadline >= limit:
            raise ConfigError(
                f"reward {self.short!r}: deadline={self.deadline:g} s of one test is not less than the {limit:g} s "
                f"that a call has for all (call_timeout, or {WITHIN_CALL:g} of the function's timeout of {timeout:g} "
                "s); raise the timeout, or lower deadline"
            )
        return super().bound(max_completion_length=max_completion_length, timeout=timeout)

    def check(self) -> None:
        if self.require_isolation:
            demand_isolation(self.short)

    def __call__(
        self, *, completions: Completions, log_metric: LogMetric | None = None, **columns: Any
    ) -> list[float | None]:
        until = self.until()
        tests = self.answers(columns)
        setups = [""] * len(completions) if self.setup_column is None else columns[self.setup_column]
        jobs = [
            functools.partial(self._score, text_of(completion), of_one, setup or "", until)
            for completion, of_one, setup in zip(completions, tests, setups, strict=True)
        ]
        scores = _in_parallel(jobs, _slots(self.workers), until)
        late = sum(each.late for each in scores)
        if log_metric is not None and late:
            log_metric(f"{self.short}/late", float(late))
        lost = Counter(["unfinished"] * sum(each.lost for each in scores))
        self.tell_lost(lost, f"the call had {self.call_timeout or NO_LIMIT:g} s for all of them", log_metric)
        return [each.value for each in scores]

    def _score(self, text: str, tests: Any, setup: str, until: float) -> _Score:
        read = _tests(tests, str(self.answer_column))
        if not read:
            return _Score(None)
        limits = Limits(
            seconds=self.deadline,
            memory=self.memory_mib * MEBIBYTE,
            disk=self.disk_mib * MEBIBYTE,
            files=self.max_files,
            processes=self.max_processes,
        )
        given = [{name: value for name, value in test.items() if name != "output"} for test in read]
        ran = run_tests(f"{setup}\n{code_in(text)}" if setup else code_in(text), given, limits, until)
        passed = [_passes(test, result) for test, result in zip(read, ran, strict=True)]
        late = sum(each.late for each in ran)
        if any(each.left for each in ran) and not late:
            return _UNFINISHED
        share = sum(passed) / len(passed)
        return _Score(share if self.score == "share" else float(all(passed)), late)


class _Score(NamedTuple):
    value: float | None
    late: int = 0
    """Tests that were."""
    lost: bool = False


_UNFINISHED = _Score(None, lost=True)


def _tests(column: Any, name: str) -> list[Mapping[str, str]]:
    listed: Sequence[Any] = [column] if column and isinstance(column, str | Mapping) else column or []
    tests: list[Mapping[str, str]] = []
    for each in listed:
        if isinstance(each, str):
            tests.append({"code": each})
        elif isinstance(each, Mapping) and isinstance(each.get("input"), str) and isinstance(each.get("output"), str):
            tests.append({"input": each["input"], "output": each["output"]})
        else:
            raise BadValue(f"column {name!r} holds {brief(each)}, expected Python or {{'input': …, 'output': …}}")
    return tests


def _passes(test: Mapping[str, str], ran: Ran) -> bool:
    if "output" not in test:
        return ran.passed
    return ran.passed and _lines(ran.output) == _lines(test["output"])


def _lines(output: str) -> list[str]:
    """Without blanks at the ends of lines and empty lines at the end."""
    return [line.rstrip() for line in output.rstrip().splitlines()]


def _in_parallel(jobs: Sequence[Callable[[], _Score]], slots: threading.Semaphore, until: float) -> list[_Score]:
    """Results in order; those that have no slot by `until` are unfinished. The first error is raised once all have
    ended."""
    results = [_UNFINISHED] * len(jobs)
    ended = SimpleQueue[BaseException | None]()

    def run(index: int) -> None:
        try:
            if slots.acquire(timeout=max(0.0, until - time.monotonic())):
                try:
                    results[index] = jobs[index]()
                finally:
                    slots.release()
        except BaseException as error:  # handed to the caller
            ended.put(error)
        else:
            ended.put(None)

    for index in range(len(jobs)):
        start_job(functools.partial(run, index))
    errors = [error for _ in jobs if (error := ended.get()) is not None]
    if errors:
        raise errors[0]
    return results


def _slots(count: int | None) -> threading.Semaphore:
    return _shared(max(1, len(os.sched_getaffinity(0)) // 2) if count is None else count)


@functools.cache
def _shared(count: int) -> threading.Semaphore:
    return threading.Semaphore(count)
