"""Worker processes: one question costs at most its own worker."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncgrpo.rewards.builtin.workers import Lost, Workers

PROGRAM = """
import json, os, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "hang":
        while True:
            pass
    if asked["do"] == "die":
        os._exit(3)
    if asked["do"] == "grow":
        held = b"x" * (3 << 30)
        time.sleep(60)
    print(json.dumps([os.getpid(), asked["do"]]), flush=True)
"""


@pytest.fixture
def workers(tmp_path: Path) -> Callable[..., Workers]:
    def make(count: int = 1, program: str = PROGRAM) -> Workers:
        (tmp_path / "program.py").write_text(program)
        return Workers(tmp_path / "program.py", count)

    return make


def ask(workers: Workers, *what: str, seconds: float = 30.0, within: float = 60.0) -> list:
    return workers.ask_all([{"do": each} for each in what], seconds, time.monotonic() + within)


def test_replies_come_in_order_and_workers_stay(workers: Callable[..., Workers]) -> None:
    two = workers(2)
    replies = ask(two, *map(str, range(20)))
    assert [said for _, said in replies] == list(map(str, range(20)))
    ids = {worker for worker, _ in replies}
    assert 1 <= len(ids) <= 2
    assert {worker for worker, _ in ask(two, "a", "b")} & ids


@pytest.mark.parametrize(("what", "kind"), [("hang", "late"), ("die", "died"), ("grow", "memory")])
def test_a_question_that_goes_wrong_costs_its_worker_and_nothing_else(
    workers: Callable[..., Workers], what: str, kind: str
) -> None:
    one = workers()
    [before, lost, after] = ask(one, "a", what, "b", seconds=2.0 if what == "hang" else 30.0)
    assert (before[1], lost, after[1]) == ("a", Lost(kind), "b")
    assert before[0] != after[0]
    assert not Path(f"/proc/{before[0]}").exists()


def test_what_waits_when_time_is_up_is_given_up(workers: Callable[..., Workers]) -> None:
    one = workers()
    ask(one, "x")  # it has started
    assert ask(one, "hang", "a", "b", seconds=30.0, within=1.0) == [Lost("late"), Lost("unasked"), Lost("unasked")]


SLOW = """
import os, pathlib, sys, time
here = pathlib.Path(sys.argv[0]).parent
with open(here / "starts", "a") as starts:
    starts.write(f"{os.getpid()}\\n")
while not (here / "start").exists():
    time.sleep(0.01)
"""


def test_a_worker_that_starts_after_the_call_is_there_for_the_next(
    workers: Callable[..., Workers], tmp_path: Path
) -> None:
    one = workers(program=SLOW + PROGRAM)
    assert ask(one, "a", within=0.5) == [Lost("unasked")]
    assert ask(one, "a", within=0.5) == [Lost("unasked")]
    (tmp_path / "start").touch()
    [[worker, said]] = ask(one, "a")
    assert said == "a"
    assert (tmp_path / "starts").read_text() == f"{worker}\n", "it was started once"


def test_an_idle_worker_that_has_ended_is_replaced(workers: Callable[..., Workers]) -> None:
    one = workers()
    [[first, _]] = ask(one, "a")
    os.kill(first, 9)
    [reply] = ask(one, "b")
    assert reply == Lost("died") or reply[1] == "b"  # it may be asked before its end is seen
    assert ask(one, "c")[0][1] == "c"


@pytest.mark.parametrize(
    ("program", "why"),
    [("", "it ended, or took longer"), ('print(\'{"failed": "ImportError: gone"}\')', "ImportError: gone")],
)
def test_a_program_that_does_not_start_is_no_lost_answer(
    workers: Callable[..., Workers], program: str, why: str
) -> None:
    with pytest.raises(RuntimeError, match=rf"a worker process for program.py did not start: {why}"):
        ask(workers(program=program), "a", "b")
