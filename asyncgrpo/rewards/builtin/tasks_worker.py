"""Program of a worker process: asks reasoning_gym's verifiers about answers, one line of JSON for each.

    {"task": name, "arguments": JSON, "index": number, "answer": text, "seconds": limit}
    ->  {"value": number, "caught": whether the verifier caught an error}
    or  {"lost": "late" | "memory" | "died" | "raised", "why": text}, or {"error": text} where the task cannot be made

Some verifiers evaluate the answer as Python. So each is judged by a process of its own, forked off for it, with limits,
and nothing that it changes or starts is there for the next one. An answer made to deceive can still write its own
verdict: it is evaluated where that is given.

Verifiers catch what is raised at an answer that they cannot read, and give it little or nothing. But lack of memory, of
a package or of a file is no fault of an answer: they are seen here, and the verdict is lost. Whoever starts this
program ends everything below it. Only reasoning_gym and the standard library are imported.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import resource
import select
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

MEMORY = 2 << 30
"""Bytes of address space."""
PROCESSES, FILES, FILE_SIZE = 16, 256, 16 << 20
MARGIN = 0.25
"""Seconds by which a late answer is ended before whoever waits for it would end this process."""
LONGEST_WHY = 300


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what prints must not speak to our parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    apart = [what for what in os.environ.pop("APART", "").split(",") if what]
    try:
        import reasoning_gym
    except Exception as error:  # said to the parent, which raises it
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), file=replies)
        return
    _sandbox().be_opaque()
    folder = str(Path(reasoning_gym.__file__).parent) + os.sep
    print(json.dumps({"ready": apart}), file=replies)
    for line in sys.stdin:
        print(json.dumps(judge(json.loads(line), folder, apart)), file=replies)


def judge(asked: dict[str, Any], folder: str, apart: list[str]) -> dict[str, Any]:
    try:
        tasks = _tasks(asked["task"], asked["arguments"])
    except Exception as error:  # said to the parent, which raises it
        return {"error": _said(error)}
    sandbox = _sandbox()
    alone = "processes" in apart and os.getpid() == 1
    processes = sandbox.most_processes(PROCESSES, apart)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            limit(writer, processes)
            os.write(writer, json.dumps(verdict(tasks, asked, folder)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    seconds = asked["seconds"]
    handle = os.pidfd_open(child)
    late = not select.select([handle], [], [], max(seconds / 2, seconds - MARGIN))[0]
    os.close(handle)
    sandbox.end(child, alone)
    os.set_blocking(reader, False)
    with os.fdopen(reader, "rb") as told:
        said = told.read(1 << 12) or b""  # None: a process that got away holds the other end, and nothing was said
    if late or not said:
        return {"lost": "late" if late else "died", "why": ""}
    reply: dict[str, Any] = json.loads(said)
    return reply


def limit(writer: int, processes: int | None) -> None:
    """Leave this process nothing but the pipe for its verdict, and limits."""
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in range(3):
        os.dup2(nothing, handle)
    os.closerange(3, writer)
    os.closerange(writer + 1, 1 << 12)
    for name, most in (
        ("AS", MEMORY), ("FSIZE", FILE_SIZE), ("NOFILE", FILES), ("NPROC", processes), ("CORE", 0)
    ):  # fmt: skip
        if most is not None:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def verdict(tasks: Any, asked: dict[str, Any], folder: str) -> dict[str, Any]:
    try:
        entry = tasks[asked["index"]]
    except Exception as error:
        return {"error": _said(error)}
    watch = Watch(folder)
    sys.settrace(watch.called)
    try:
        value = float(tasks.score_answer(asked["answer"], entry=entry))
    except BaseException as error:  # the answer may raise anything
        return {"lost": _kind(error) or "raised", "why": _said(error)}
    finally:
        sys.settrace(None)
    for caught in watch.caught:
        if kind := _kind(caught):
            return {"lost": kind, "why": _said(caught)}
    return {"value": value, "caught": bool(watch.caught)}


class Watch:
    """Sees the errors that come to code of a folder, also those that it catches."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.caught: list[BaseException] = []

    def called(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._folder):
            return None
        frame.f_trace_lines = False
        return self._happened

    def _happened(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "exception":
            error = argument[1]
            if isinstance(error, BaseException) and not isinstance(error, StopIteration):
                self.caught.append(error)
        return self._happened


def _kind(error: BaseException) -> str | None:
    """Why there is no verdict; None for an error that an answer makes."""
    if isinstance(error, MemoryError):
        return "memory"
    if not isinstance(error, ImportError | OSError):
        return None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<string>"):  # the answer itself, as it is evaluated
            return None
        trace = trace.tb_next
    return "raised"


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:LONGEST_WHY]
    except Exception:  # its __str__ may be the answer's
        return type(error).__name__[:LONGEST_WHY]


@functools.lru_cache(maxsize=64)
def _tasks(name: str, arguments: str) -> Any:
    """The dataset that a row was made by."""
    import reasoning_gym

    return reasoning_gym.create_dataset(name, **json.loads(arguments))


@functools.cache
def _sandbox() -> Any:
    """`sandbox_program`, without the package that it is in, whose other modules would take long to import."""
    spec = importlib.util.spec_from_file_location("sandbox_program", Path(__file__).with_name("sandbox_program.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
