"""Code in a completion, its tests, and what it tries instead."""

import logging
import os
import socket
import threading
from typing import Any

import psutil
import pytest

from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.builtin import CodeExecution
from asyncgrpo.rewards.builtin.code_execution import code_in
from asyncgrpo.rewards.builtin.confined import APART
from asyncgrpo.rewards.builtin.sandbox import Limits, SandboxError, kept_apart, run_tests
from asyncgrpo.rewards.builtin.sandbox_program import most_processes, threads_of
from asyncgrpo.rewards.values import BadValue

REWARD = CodeExecution(deadline=20.0, workers=1)
ADD = "def add(a, b):\n    return a + b"


def limits(**given: Any) -> Limits:
    return Limits(**{"seconds": 20.0, "memory": 512 << 20, "disk": 4 << 20, "files": 64, "processes": 16, **given})


def passes(code: str, test: str = "", **given: Any) -> bool:
    [ran] = run_tests(code, [{"code": test}], limits(**given))
    return ran.passed


def test_the_share_of_tests_that_pass() -> None:
    tests = ["assert add(1, 2) == 3", "assert add(2, 2) == 5"]
    fenced = f"Here:\n```python\n{ADD}\n```\nDone."
    arguments: dict[str, Any] = {"completions": [fenced, ADD, "no code"], "tests": [tests, tests[0], tests]}
    assert REWARD(**arguments) == [0.5, 1.0, 0.0]
    assert CodeExecution(deadline=20.0, score="all", workers=1)(**arguments) == [0.0, 1.0, 0.0]
    assert REWARD(completions=[ADD] * 3, tests=[None, [], ""]) == [None] * 3


def test_programs_that_read_and_print() -> None:
    tests = [{"input": "1 2\n", "output": "3"}, {"input": "2 2\n", "output": "4 \n\n"}, {"input": "2 2", "output": "5"}]
    program = "import sys\na, b = map(int, input().split())\nprint(a + b)\nsys.exit(0)"
    assert REWARD(completions=[program], tests=[tests]) == [pytest.approx(2 / 3)]
    assert REWARD(completions=["print(3)\nraise ValueError"], tests=[tests[:1]]) == [0.0]


def test_a_setup_and_other_columns() -> None:
    reward = CodeExecution(answer_column="checks", setup_column="before", deadline=20.0, workers=1)
    assert list(reward.__signature__.parameters) == ["completions", "checks", "before", "log_metric"]
    assert reward(completions=["x = sqrt(4)"], checks=["assert x == 2"], before=["from math import sqrt"]) == [1.0]
    with pytest.raises(BadValue, match="column 'checks' holds the int 3, expected Python or "):
        reward(completions=["x"], checks=[[3]], before=[None])


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise SystemExit",
        "import os; os.write(3, bytes(16)); os._exit(0)",
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)\nwhile True: pass",
        "def add(a, b): return",
        "def add(:",
        "",
    ],
)
def test_what_does_not_solve_the_task_does_not_pass(code: str) -> None:
    assert not passes(code, "assert add(1, 2) == 3", seconds=2.0)


FRAMES = """
import gc, sys
frame, seen = sys._getframe(), {}
while frame:
    seen |= {**frame.f_globals, **frame.f_locals}
    frame = frame.f_back
texts = [str(each) for each in [*seen.values(), *gc.get_objects()] if isinstance(each, (str, bytes, list, dict))]
"""


def test_code_that_looks_around_sees_neither_its_tests_nor_the_word() -> None:
    cheat = "import os\nos.write(3, seen['word'])\nos._exit(0)"
    assert not passes(FRAMES + cheat, "assert add(1, 2) == 3")
    test = "assert not seen_by_code, 'given-last'"
    assert passes(FRAMES + "seen_by_code = any('-'.join(['given', 'last']) in text for text in texts)", test)


def test_what_a_program_does_is_judged_by_its_output_and_its_end() -> None:
    tests = [{"input": "", "output": "3"}]
    programs = ["print(3, flush=True)\nimport os; os._exit(0)", "print(3, flush=True)\nimport os; os._exit(2)"]
    programs += ["import atexit; atexit.register(print, 3)", "import os; os.write(3, b'?')\nprint(3)"]
    assert REWARD(completions=programs, tests=[tests] * 4) == [1.0, 0.0, 1.0, 0.0]


def test_a_class_of_the_code_can_be_pickled_as_in_any_program() -> None:
    assert passes("import pickle\nclass A: pass", "assert type(pickle.loads(pickle.dumps(A()))) is A")


def test_limits_in_which_python_does_not_start_are_no_fault_of_the_code() -> None:
    with pytest.raises(SandboxError, match="Python did not start within the limits of a test; give it more memory_mib"):
        passes(ADD, "assert add(1, 2) == 3", memory=8 << 20)


THREAD = "import threading\nthread = threading.Thread(target=print); thread.start(); thread.join()"


def test_without_namespaces_the_users_other_threads_are_not_the_codes() -> None:
    ended = threading.Event()
    threads = [threading.Thread(target=ended.wait) for _ in range(20)]
    for thread in threads:
        thread.start()
    try:
        assert most_processes(8, []) > 8 + threads_of(os.getuid()) - 5  # others come and go
        assert threads_of(os.getuid()) > 20
        assert passes(THREAD, isolate=False, processes=8)  # for root the kernel counts none
    finally:
        ended.set()
    assert most_processes(8, ["network", "processes"]) == 8


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("while True: pass", {"seconds": 1.0}),
        ("import time; time.sleep(60)", {"seconds": 1.0}),
        ("x = bytearray(1 << 30)", {}),
        ("open('big', 'wb').write(bytes(8 << 20))", {}),
        ("files = [open('/dev/null') for _ in range(100)]", {}),
    ],
)
def test_limits_hold(code: str, limit: dict[str, float]) -> None:
    assert not passes(code, **limit)


def test_what_is_within_the_limits_is_done_and_tests_do_not_see_each_other() -> None:
    write = (
        "open('note', 'w').write('x'); import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    )
    assert passes(write)
    counted = "import os; assert not os.path.exists('note'); open('note', 'w'); total = 1"
    ran = run_tests(counted, [{"code": "total += 1; assert total == 2"}] * 2, limits())
    assert [each.passed for each in ran] == [True, True]


def test_a_late_test_is_told_apart_and_those_after_it_run() -> None:
    metrics: list[tuple[str, float]] = []
    reward = CodeExecution(deadline=2.0, workers=1)
    tests = ["while True: pass", "assert True"]
    assert reward(completions=["x = 1"], tests=[tests], log_metric=lambda *pair: metrics.append(pair)) == [0.5]
    assert metrics == [("code_execution/late", 1.0)]


def test_a_call_ends_in_time_and_gives_back_its_slots(caplog: pytest.LogCaptureFixture) -> None:
    loops = "while True: pass"
    reward = CodeExecution(deadline=0.5, workers=1).bound(max_completion_length=8, timeout=10.0)
    assert isinstance(reward, CodeExecution)
    assert reward.call_timeout == 8.0
    metrics: dict[str, float] = {}
    tests = [["x = 1"] * 100] * 3
    with caplog.at_level(logging.WARNING):
        scores = reward(completions=[loops] * 3, tests=tests, log_metric=metrics.__setitem__)
    # The one that had the slot has failed what was left; those that only waited for it have not.
    assert sorted(scores, key=str) == [0.0, None, None]
    assert metrics["code_execution/late"] >= 1
    assert metrics["code_execution/lost"] == 2
    assert "2 answers without a verdict (2 unfinished; the call had 8 s for all of them), not scored" in caplog.text
    assert REWARD(completions=[ADD], tests=["assert add(1, 2) == 3"]) == [1.0]


def test_a_test_that_may_take_the_whole_call_is_refused() -> None:
    with pytest.raises(ConfigError, match="deadline=5 s of one test is not less than the 4 s that a call has for all"):
        CodeExecution().bound(max_completion_length=8, timeout=5.0)


def test_a_test_that_runs_when_the_call_is_over_is_ended_with_it() -> None:
    reward = CodeExecution(deadline=500.0, workers=1, call_timeout=3.0)
    assert reward(completions=["while True: pass"], tests=["x = 1"]) == [None]
    with pytest.raises(RuntimeError, match=r"1 answers without a verdict \(1 unfinished; the call had 3 s"):
        CodeExecution(deadline=500.0, workers=1, call_timeout=3.0, on_lost="error")(
            completions=["while True: pass"], tests=["x = 1"]
        )


def test_no_process_stays_behind() -> None:
    code = (
        "import os, time\n"
        "for _ in range(3):\n"
        "    if not os.fork():\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        "        os.execvp('sleep', ['sleep', '1234.5678'])\n"
        "time.sleep(0.2)\n"
    )
    assert passes(code)
    assert passes(code, isolate=False)
    left = [process for process in psutil.process_iter(["cmdline"]) if "1234.5678" in (process.info["cmdline"] or [])]
    assert left == []


def test_code_is_kept_from_network_processes_and_files_where_the_kernel_can() -> None:
    if not kept_apart():
        pytest.skip("this kernel refuses namespaces to this user")
    assert set(kept_apart()) == set(APART)
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"import socket; socket.create_connection({server.getsockname()}, timeout=5)"
        assert passes(connect, isolate=False)
        assert not passes(connect)
    assert passes("try: open('/var/tmp/x', 'w')\nexcept OSError as error: assert error.errno == 30, error")
    assert passes("import os; assert os.getpid() < 100")
    assert passes("import os; assert len([name for name in os.listdir('/proc') if name.isdigit()]) < 5")


REMOUNT = """
import ctypes
attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)  # no longer read-only
assert ctypes.CDLL(None).syscall(442, -100, b"/", 0, attributes, 32) == -1
"""


def test_code_cannot_undo_what_keeps_it_apart() -> None:
    if "files" not in kept_apart():
        pytest.skip("this kernel refuses namespaces to this user")
    assert passes(REMOUNT)
    look = "import os\ntry: open(f'/proc/{os.getppid()}/mem', 'rb')\nexcept PermissionError: denied = True"
    assert passes(look, "assert denied")
    assert passes("assert 'CapEff:\\t0000000000000000' in open('/proc/self/status').read()")


def test_isolation_can_be_required() -> None:
    reward = CodeExecution(require_isolation=True)
    if kept_apart():
        reward.check()
    else:
        with pytest.raises(ConfigError, match="this machine cannot keep code from network, processes, files"):
            reward.check()


def test_without_namespaces_it_runs_with_limits_and_the_orchestrators_secrets_are_not_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_API_KEY", "secret")
    with caplog.at_level(logging.WARNING):
        assert passes("import os; assert 'MY_API_KEY' not in os.environ", isolate=False)
    assert not caplog.text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```\n```py\nb\n```\n```\nc\n```", "b\n"),
        ("```\na\n```\n```text\nb\n```", "a\n"),
        ("```bash\nls\n```", ""),
        ("just code", "just code"),
        ("```python\ncut off", "cut off"),
    ],
)
def test_the_code_of_a_completion(text: str, code: str) -> None:
    assert code_in(text) == code
