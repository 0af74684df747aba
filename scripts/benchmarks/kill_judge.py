"""What `kills.py` asks of a run that was killed many times: is everything there once, and what was left behind?"""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.numpy import load_file

from asyncgrpo.config.loading import load_config
from asyncgrpo.guardian import left_shared
from asyncgrpo.observe.ledger_file import read_ledger
from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.preflight import prepare
from asyncgrpo.retraining import load_rerun, retrain
from asyncgrpo.types import LedgerEntry


@dataclass
class History:
    """Of a whole run, over all its starts."""

    lost: list[str] = field(default_factory=list)
    """Prompts of the stream, up to as many as were to be trained, that were not."""
    double: list[str] = field(default_factory=list)
    """Prompts that were trained more than once."""
    complaints: list[str] = field(default_factory=list)
    """Where the books do not balance."""
    differing: list[str] = field(default_factory=list)
    """Where `retrain` gave something else than the run."""


def judge(folder: Path) -> History:
    """A run in `folder`/run that has ended, as `folder`/run.yaml says."""
    config = load_config(folder / "run.yaml", []).config
    job = prepare(config)
    steps, groups = job.total_steps, job.total_steps * config.fresh_groups
    ledger = read_ledger(folder / "run" / "ledger.jsonl")  # refuses a group with two fates
    trained = Counter(entry.prompt_id for entry in ledger if entry.fate == "trained")
    stream = [prompt.prompt_id for prompt in job.prompts.peek(groups)]
    return History(
        lost=[prompt for prompt in stream if prompt not in trained],
        double=[prompt for prompt, times in trained.items() if times > 1],
        complaints=[*_imbalances(folder / "run", ledger, steps, groups)],
        differing=[*_differences(folder, steps)],
    )


def _imbalances(run: Path, ledger: list[LedgerEntry], steps: int, groups: int) -> Iterator[str]:
    recorded = [record["step"] for record in read_metrics(run / "metrics.jsonl")]
    if recorded != list(range(1, steps + 1)):
        yield f"metrics.jsonl has the steps {recorded}"
    ids = sorted(entry.group_id for entry in ledger)
    if ids != list(range(len(ledger))):
        yield f"of {ids[-1] + 1} groups {len(ids)} have a fate"
    fates = Counter(f"{entry.fate}:{entry.reason}".removesuffix(":") for entry in ledger)
    if fates["trained"] != groups:
        yield f"{fates['trained']} groups were trained, not {groups}"
    tables = json.loads((run / "accounting.json").read_text())
    summed = {fate: tally["groups"] for fate, tally in tables["by_fate"].items()}
    if summed != fates:
        yield f"accounting.json says {summed}, the ledger {dict(fates)}"


def _differences(folder: Path, steps: int) -> Iterator[str]:
    source = RunFolder(folder / "run")
    again = retrain(source, load_rerun(source.path, [f"--run.output_dir={folder / 'again'}"]))
    if len(again) != steps:
        yield f"rollouts of {len(again)} of {steps} steps are there"
    for step in again:
        for name, now, then in step.differences():
            yield f"step {step.step}: {name} was {then}, is {now}"
    then, now = (load_file(folder / name / "final_model" / "model.safetensors") for name in ("run", "again"))
    if then.keys() != now.keys() or any(then[name].tobytes() != now[name].tobytes() for name in then):
        yield "the final model"


def left_behind(folder: Path, port: int, engines: int, shared: set[int]) -> list[str]:
    """Once no process of a start lives any more: files outside the run's folder, and ports that are still taken.

    shared: inodes of what its processes had mapped in memory.
    """
    left = [str(path) for name in ("shm", "tmp") for path in (folder / name).iterdir()]
    left += map(str, left_shared(shared))
    return left + [f"port {each}" for each in range(port, port + engines) if not _is_free(each)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
