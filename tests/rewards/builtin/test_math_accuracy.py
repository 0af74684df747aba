"""Accuracy beside its values: from wherever it is called, and whatever an answer does to the process that reads it."""

import concurrent.futures
import logging
import multiprocessing
import subprocess
import sys
import threading
import time
from typing import Any

import psutil
import pytest

from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.builtin import Accuracy, Cosine, ReasoningAccuracy, accuracy
from asyncgrpo.rewards.builtin.judged import lost_answers
from asyncgrpo.rewards.values import BadValue

PATIENT = Accuracy(deadline=60.0, workers=1)
HANGS = r"\boxed{10^{10^{10}}}"
"""A number whose digits no machine can hold; math-verify computes it in C, where no signal of Python's arrives."""
RIGHT = [1.0, 0.0]


def third(reward: Accuracy = PATIENT) -> list[float | None]:
    percent = r"$7.41\%$"
    assert reward(completions=[rf"\boxed{{{percent[1:-1]}}}"], solution=[percent]) == [1.0]
    return reward(completions=[r"so \boxed{\frac{1}{3}}", r"\boxed{\frac{1}{2}}"], solution=[r"\frac{1}{3}"] * 2)


def third_and_children() -> tuple[list[float | None], int]:
    return third(), len(psutil.Process().children())


def test_the_same_in_the_main_thread_in_others_and_in_processes() -> None:
    assert threading.current_thread() is threading.main_thread()
    assert third() == RIGHT
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: third(), range(4))) == [RIGHT] * 4


@pytest.mark.parametrize("way", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_same_in_another_process_also_one_forked_from_a_user_of_workers(way: str) -> None:
    assert third() == RIGHT
    hanging = Accuracy(deadline=8.0, workers=1)
    busy = threading.Thread(target=lambda: hanging(completions=[HANGS], solution=["5"]))
    busy.start()
    time.sleep(0.5)  # our only worker is taken, as the other process sees it
    with multiprocessing.get_context(way).Pool(1) as pool:
        scores, workers = pool.apply_async(third_and_children).get(timeout=120)
    assert scores == RIGHT
    assert workers >= 1  # of its own
    busy.join()
    assert third() == RIGHT  # the other process has left our workers alone


def test_an_answer_that_hangs_is_not_scored_and_counted_and_others_are(caplog: pytest.LogCaptureFixture) -> None:
    metrics: list[tuple[str, float]] = []
    reward, before = Accuracy(deadline=3.0, workers=1), lost_answers["late"]
    third(Accuracy(deadline=60.0, workers=1))  # its worker runs
    with caplog.at_level(logging.WARNING):
        scores = reward(
            completions=[r"\boxed{5}", HANGS, r"\boxed{6}"],
            solution=["5"] * 3,
            log_metric=lambda *pair: metrics.append(pair),
        )
    assert scores == [1.0, None, 0.0]
    assert lost_answers["late"] == before + 1
    assert metrics == [("accuracy/lost", 1.0)]
    assert "reward accuracy: 1 answers without a verdict (1 late; deadline 3 s), not scored" in caplog.text
    assert third() == RIGHT


def test_an_answer_that_hangs_can_fail_the_call_instead() -> None:
    with pytest.raises(RuntimeError, match=r"1 answers without a verdict \(1 late; deadline 1 s\)"):
        Accuracy(deadline=1.0, workers=1, on_lost="error")(completions=[HANGS], solution=["5"])


def test_a_call_gives_answers_up_in_time() -> None:
    reward = Accuracy(deadline=60.0, workers=1).bound(max_completion_length=8, timeout=2.5)
    assert isinstance(reward, Accuracy)
    assert reward.call_timeout == 2.0
    assert reward(completions=[HANGS] * 3, solution=["5"] * 3) == [None] * 3


def test_a_call_that_would_give_up_too_late_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"call_timeout=60 s is not less than the function's timeout of 60 s"):
        Accuracy(call_timeout=60.0).bound(max_completion_length=8, timeout=60.0)


def test_right_answers_as_columns_have_them() -> None:
    reward = Accuracy(answer_column="answer", deadline=60.0, workers=1)
    assert reward(completions=[r"\boxed{5}"] * 4, answer=["5", 5, 5.0, None]) == [1.0, 1.0, 1.0, None]
    with pytest.raises(BadValue, match="column 'answer' holds the list"):
        reward(completions=["x"], answer=[["5"]])
    with pytest.raises(BadValue, match="needs the right answers as answer=…; another column is named by answer_column"):
        reward(completions=["x"], solution=["5"])


def test_only_what_follows_the_reasoning_counts() -> None:
    texts = [r"\boxed{5}", r"<think>\boxed{5}</think> \boxed{6}", r"<think>\boxed{6}</think> a</think> \boxed{5}"]
    reward = ReasoningAccuracy(deadline=60.0, workers=1)
    assert reward(completions=texts, solution=["5"] * 3) == [0.0, 0.0, 1.0]
    assert reward(completions=texts, solution=[""] * 3) == [0.0, None, None]
    other = ReasoningAccuracy(reasoning_delimiters=["##"], deadline=60.0, workers=1)
    assert other(completions=[r"## \boxed{5}"], solution=["5"]) == [1.0]


def test_a_cosine_needs_its_length_and_has_it_from_the_run() -> None:
    arguments: dict[str, Any] = {"completions": [r"\boxed{5}"] * 3, "solution": ["5"] * 3}
    arguments["completion_ids"] = [[], [1] * 50, [1] * 100]
    reward = Cosine(deadline=60.0, workers=1)
    with pytest.raises(ConfigError, match="max_len is not known outside of a run; give it"):
        reward(**arguments)
    assert reward.bound(max_completion_length=100, timeout=60.0)(**arguments) == [1.0, pytest.approx(0.75), 0.5]


def test_without_math_verify_it_is_refused_before_anything_is_loaded() -> None:
    program = (
        "import sys; sys.modules['math_verify'] = None\n"
        "from asyncgrpo.rewards import bound, from_callables\n"
        "from asyncgrpo.rewards.builtin import accuracy, think_format\n"
        "bound(from_callables([think_format]), 8)\n"
        "bound(from_callables([accuracy]), 8)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    said = "asyncgrpo.errors.ConfigError: reward 'accuracy' needs math-verify; pip install 'asyncgrpo[math]'"
    assert done.stderr.strip().endswith(said)


def test_nothing_of_it_outlives_a_process_that_is_killed() -> None:
    program = (
        "import os, psutil, threading, time\n"
        "from asyncgrpo.rewards.builtin import Accuracy\n"
        "reward = Accuracy(deadline=60.0, workers=1)\n"
        "reward(completions=['5'], solution=['5'])\n"
        "print(*(child.pid for child in psutil.Process().children()), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    [worker] = map(int, done.stdout.split())
    with_that_id = [process for process in psutil.process_iter() if process.pid == worker]
    psutil.wait_procs(with_that_id, timeout=30)
    assert not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE


def test_the_plain_object_has_the_default_arguments() -> None:
    assert (accuracy.answer_column, accuracy.deadline, accuracy.on_lost) == ("solution", 5.0, "none")
