"""Answers to tasks of reasoning_gym, which its verifiers evaluate as Python."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.builtin import ReasoningGym
from asyncgrpo.rewards.builtin.sandbox import kept_apart
from asyncgrpo.rewards.builtin.tasks_worker import verdict

REWARD = ReasoningGym(deadline=60.0, workers=1)
ARGUMENTS = json.dumps({"size": 2, "seed": 1, "min_n": 2, "max_n": 2})
"""The answer to its first task is `9 4 1 1`, which is asked for as numbers between blanks."""
RIGHT = "9 4 1 1"


def scores(*answers: str, reward: ReasoningGym = REWARD, **given: Any) -> list[float | None]:
    """Of the task `spiral_matrix`, whose verifier evaluates every answer that is not the right one."""
    count = len(answers)
    columns: dict[str, Any] = {"task": ["spiral_matrix"] * count, "task_arguments": [ARGUMENTS] * count}
    return reward(completions=answers, **columns, task_index=[0] * count, **given)


def python(expression: str) -> str:
    """An answer with a side effect: a list, so that its verifier takes it."""
    return f"[{expression}]"


def test_what_an_answer_does_is_not_done_in_our_process(tmp_path: Path) -> None:
    target = tmp_path / "written"
    write = f"__import__('pathlib').Path({str(target)!r}).write_text(str(__import__('os').getpid()))"
    assert scores(python(write), RIGHT) == [0.0, 1.0]
    if "files" in kept_apart():
        assert not target.exists()
    else:
        assert int(target.read_text()) != os.getpid()


def test_secrets_of_the_environment_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "secret")
    reward = ReasoningGym(deadline=60.0, workers=2)  # started now
    assert scores(python("'MY_API_KEY' in __import__('os').environ and __import__('os')._exit(1)"), reward=reward) == [
        0.0
    ]


def test_no_answer_changes_how_the_next_is_judged() -> None:
    module = "__import__('reasoning_gym.algorithmic.spiral_matrix', fromlist=['x'])"
    patch = f"setattr({module}.SpiralMatrixDataset, 'score_answer', lambda *a, **k: 1.0)"
    assert scores(python(patch), "nonsense", RIGHT) == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("answer", "kind", "deadline"),
    [
        ("3 ** (10 ** 9)", "late", 2.0),  # in C, with the lock of its interpreter
        ("bytes(1 << 40)", "memory", 60.0),  # raised, and caught by the verifier
        ("__import__('os')._exit(0)", "died", 60.0),
        ("__import__('sys').exit(0)", "raised", 60.0),
    ],
)
def test_an_answer_without_a_verdict_is_not_scored_and_counted_and_others_are(
    answer: str, kind: str, deadline: float, caplog: pytest.LogCaptureFixture
) -> None:
    assert scores(RIGHT) == [1.0]  # the worker runs
    metrics: dict[str, float] = {}
    reward = ReasoningGym(deadline=deadline, workers=1)
    with caplog.at_level(logging.WARNING):
        assert scores("1", python(answer), RIGHT, reward=reward, log_metric=metrics.__setitem__) == [0.0, None, 1.0]
    assert metrics["reasoning_gym/lost"] == 1.0
    assert f"reward reasoning_gym: 1 answers without a verdict (1 {kind}; deadline {deadline:g} s" in caplog.text
    with pytest.raises(RuntimeError, match=f"1 answers without a verdict .1 {kind}"):
        scores(python(answer), reward=ReasoningGym(deadline=deadline, workers=1, on_lost="error"))


def test_errors_that_the_verifier_catches_are_counted() -> None:
    metrics: dict[str, float] = {}
    assert scores("7 1", RIGHT, "[9, 4, 1, 1]", "[0]", log_metric=metrics.__setitem__) == [0.0, 1.0, 0.1, 0.0]
    assert metrics == {"reasoning_gym/caught": 0.25}


class Tasks:
    """A stand-in for a task whose verifier catches what happens to it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"answer": "4"}

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        try:
            if answer == "own":
                eval("(_ for _ in ()).throw(error)", {"error": self._error})
            raise self._error
        except (ValueError, OSError, ImportError, MemoryError):
            return 0.01


@pytest.mark.parametrize(
    ("error", "answer", "said"),
    [
        (ValueError("no number"), "x", {"value": 0.01, "caught": True}),
        (ImportError("no sympy"), "x", {"lost": "raised", "why": "ImportError: no sympy"}),
        (OSError("no words.csv"), "x", {"lost": "raised", "why": "OSError: no words.csv"}),
        (OSError("no words.csv"), "own", {"value": 0.01, "caught": True}),
        (MemoryError("full"), "own", {"lost": "memory", "why": "MemoryError: full"}),
        (KeyError("gone"), "x", {"lost": "raised", "why": "KeyError: 'gone'"}),
    ],
)
def test_what_is_no_fault_of_the_answer_is_no_verdict_though_the_verifier_caught_it(
    error: Exception, answer: str, said: dict[str, Any]
) -> None:
    assert verdict(Tasks(error), {"index": 0, "answer": answer}, str(Path(__file__).parent)) == said


def test_a_task_that_cannot_be_made_again_fails_the_call() -> None:
    columns: dict[str, Any] = {"task": ["spiral_matrix"], "task_arguments": ['{"min_n": -1}'], "task_index": [3]}
    with pytest.raises(RuntimeError, match=r"task 'spiral_matrix', number 3, is not made: AssertionError: min_n"):
        REWARD(completions=["1"], **columns)


def test_what_an_answer_started_ends_with_its_verdict() -> None:
    if "processes" not in kept_apart():
        pytest.skip("this kernel refuses namespaces to this user")
    start = "__import__('subprocess').Popen(['sleep', '1234.8765'], start_new_session=True)"
    assert scores(python(start)) == [0.0]
    left = [process for process in psutil.process_iter(["cmdline"]) if "1234.8765" in (process.info["cmdline"] or [])]
    assert left == []


def test_isolation_can_be_required() -> None:
    reward = ReasoningGym(require_isolation=True)
    if kept_apart():
        reward.check()
    else:
        with pytest.raises(ConfigError, match="reward 'reasoning_gym': this machine cannot keep code from network"):
            reward.check()


def test_nothing_of_it_outlives_a_process_that_is_killed() -> None:
    program = (
        "import os, psutil\n"
        "from asyncgrpo.rewards.builtin import ReasoningGym\n"
        "reward = ReasoningGym(deadline=60.0, workers=1)\n"
        f"reward(completions=['1'], task=['spiral_matrix'], task_arguments=[{ARGUMENTS!r}], task_index=[0])\n"
        "print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    started = list(map(int, done.stdout.split()))
    assert len(started) >= 2  # the guardian, and what it guards
    _, alive = psutil.wait_procs([each for each in psutil.process_iter() if each.pid in started], timeout=30)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
