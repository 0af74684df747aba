"""Kills processes of small trainings, resumes, and asks whether anything was lost: 50 kills by default.

    python scripts/benchmarks/kills.py                       # a quarter of an hour on two cores; needs no vLLM
    python scripts/benchmarks/kills.py --kills 5 --steps 10  # a minute or two
    python scripts/benchmarks/kills.py --seed 7 --keep /tmp/kills

A training is a process like any user's: a tiny model, a learner in a process of its own, fake engines. At a random
moment a random process of it gets kill -9:

    who      the orchestrator, its whole process group, the learner's rank, an engine, or a guardian
    when     while it starts, between steps, as a snapshot is published, as a checkpoint is written, or at the end

If that ends the training, the same command is given again. One that comes to its end is judged, and another begins,
until there were enough kills; the last one is left alone after them. Moments and victims are drawn from --seed; what
they meet depends on the machine's pace as well, so a seed repeats the drawing and not every outcome.

    kills           that were made; by_target and by_stage count them
    lost_prompts    prompts of the stream that were to be trained and were not; must be 0
    double_trained  prompts that were trained more than once; must be 0
    unbalanced      complaints about ledger, metrics and accounting, for example a group without a fate; must be 0
    identical       all recorded rollouts, trained again in one go, give the same metrics and model to the last bit
    hangs           starts that neither ended nor could be killed again within --deadline; must be 0
    refused         starts that ended with an error although nobody was killed; must be 0
    ended_by_nonfatal
                    starts that ended with an error although only a rank, an engine or a guardian was killed, by what
                    was killed last and when. docs/faults.md says where that has to be (as it starts; a rank before the
                    first checkpoint, or at the end); elsewhere the run should have gone on
    orphans         processes that lived on for --settle seconds after their orchestrator; must be 0
    leftovers       files in shared memory or the folder for temporary files, and taken ports, after the end of a start;
                    must be 0. Where the guardian of the snapshots was killed too, the next start has to remove them.

The last line is one JSON object. The exit code is 1 if something is not as it must be; then the folder is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from kill_judge import judge, left_behind
from kill_moments import FATAL, MARK, Moment, Stage, draw, is_of_snapshots, kill, processes
from shared import this_checkout

from asyncgrpo.errors import AsyncGRPOError
from asyncgrpo.guardian import shared_memory_of
from asyncgrpo.testing.tiny import make_tiny_model

FAKE_ENGINE = "asyncgrpo.testing.fake_engine"
TRAIN = (
    "import sys\n"
    "from asyncgrpo.config.loading import load_config\n"
    "from asyncgrpo.errors import AsyncGRPOError\n"
    "from asyncgrpo.launch import run_training\n"
    "try:\n"
    f"    sys.exit(run_training(load_config(sys.argv[1]), engine_module={FAKE_ENGINE!r}))\n"
    "except AsyncGRPOError as error:\n"
    "    sys.exit(f'error: {error}')\n"
)
"""`asyncgrpo train CONFIG`, with another engine."""
POLL_SECONDS = 0.003
REFUSED_IN_A_ROW = 3


class Kill(NamedTuple):
    target: str
    stage: str


class Ending(NamedTuple):
    """Of one start."""

    code: int
    kills: Sequence[Kill] = ()
    has_hung: bool = False


@dataclass
class Findings:
    kills: int = 0
    lost_prompts: int = 0
    double_trained: int = 0
    hangs: int = 0
    orphans: int = 0
    identical: bool = True
    leftovers: int = 0
    unbalanced: int = 0
    refused: int = 0
    runs: int = 0
    starts: int = 0
    by_target: Counter[str] = field(default_factory=Counter)
    by_stage: Counter[str] = field(default_factory=Counter)
    ended_by_nonfatal: Counter[str] = field(default_factory=Counter)

    @property
    def are_good(self) -> bool:
        bad = self.lost_prompts, self.double_trained, self.hangs, self.orphans, self.leftovers, self.unbalanced
        return self.identical and not any(bad) and not self.refused

    def count_end(self, ending: Ending) -> str | None:
        """A start ended with an error. Why, unless by a kill that nothing survives."""
        nonfatal = [kill for kill in ending.kills if kill.target not in FATAL]
        if ending.has_hung:
            self.hangs += 1
            return "HANG"
        if len(nonfatal) < len(ending.kills) and ending.code == -signal.SIGKILL:
            return None
        if nonfatal:
            last = nonfatal[-1]
            self.ended_by_nonfatal[f"{last.target}, {last.stage}"] += 1
            return f"ENDED BY NONFATAL KILL of {last.target}, stage {last.stage}"
        self.refused += 1
        return "REFUSED"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    begun = time.monotonic()
    root = Path(arguments.keep or tempfile.mkdtemp(prefix="kills-"))
    root.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(root, arguments)
    try:
        campaign.run()
    finally:
        campaign.end_everything()
    findings = campaign.findings
    if findings.are_good and arguments.keep is None:
        shutil.rmtree(root)
    else:
        say(f"everything is in {root}")
    figures = vars(findings) | {"seed": arguments.seed, "seconds": round(time.monotonic() - begun, 1)}
    print(json.dumps(figures), flush=True)
    return 0 if findings.are_good else 1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="kills in all (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=24, help="steps of one training (default: %(default)s)")
    parser.add_argument("--engines", type=int, default=2, help="engines of one training (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of moments and victims (default: %(default)s)")
    parser.add_argument("--deadline", type=float, default=180.0, help="seconds until a hang (default: %(default)s)")
    parser.add_argument("--settle", type=float, default=30.0, help="seconds until an orphan (default: %(default)s)")
    parser.add_argument("--keep", metavar="FOLDER", help="keep everything there, whatever is found")
    return parser.parse_args(argv)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Campaign:
    """Trainings one after the other, each in a folder of its own below `root`."""

    def __init__(self, root: Path, arguments: argparse.Namespace) -> None:
        self.findings = Findings()
        self._root, self._arguments = root, arguments
        self._rng = random.Random(arguments.seed)
        self._mark = f"{os.getpid()}-{arguments.seed}"
        self._model = make_tiny_model(root / "model", tied=True)
        self._port = 20000 + os.getpid() * 16 % 12000  # below those that the system hands out
        self._start_seconds = 10.0

    def run(self) -> None:
        while self.findings.kills < self._arguments.kills:
            if not self._one_training(self._root / f"training-{self.findings.runs}"):
                return

    def end_everything(self) -> None:
        for process in processes(self._mark):
            process.kill()

    def _one_training(self, folder: Path) -> bool:
        """Until it has come to its end, and is judged. False: it cannot be started any more."""
        self._prepare(folder)
        self.findings.runs += 1
        refused = 0
        while True:
            start = Start(self, folder)
            ending = start.run()
            self._look_after(start)
            if ending.code == 0:
                break
            if (why := self.findings.count_end(ending)) is not None:
                say(f"{why}, exit code {ending.code}:\n{start.last_words()}")
            refused = 0 if ending.kills else refused + 1
            if refused == REFUSED_IN_A_ROW:
                return False
        self._judge(folder)
        return True

    def _look_after(self, start: Start) -> None:
        """Nothing of a start that has ended may be left."""
        until = time.monotonic() + self._arguments.settle
        while (left := processes(self._mark)) and time.monotonic() < until:
            time.sleep(0.02)
        self.findings.orphans += len(left)
        for process in left:
            say(f"ORPHAN {process}")
            process.kill()
        found = left_behind(start.folder, self._port, self._arguments.engines, start.shared)
        if start.lost_snapshots_guardian:
            found = [each for each in found if not each.startswith(str(start.folder / "shm"))]
        self.findings.leftovers += len(found)
        for each in found:
            say(f"LEFT {each}")

    def _judge(self, folder: Path) -> None:
        try:
            history = judge(folder)
        except (AsyncGRPOError, OSError, KeyError) as error:
            say(f"{folder.name} cannot be judged: {error!r}")
            self.findings.unbalanced += 1
            return
        self.findings.lost_prompts += len(history.lost)
        self.findings.double_trained += len(history.double)
        self.findings.unbalanced += len(history.complaints)
        self.findings.identical &= not history.differing
        for name, found in vars(history).items():
            if found:
                say(f"{folder.name}: {name}: {found[:8]}")
        say(f"{folder.name} has ended; so far {self.findings}")

    def _prepare(self, folder: Path) -> None:
        for name in ("shm", "tmp"):
            (folder / name).mkdir(parents=True)
        rows = [{"prompt": f"prompt {number}"} for number in range(20)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "reward.py").write_text(
            "def mean(completion_ids):\n    return [sum(c) / 1e4 for c in completion_ids]\n"
        )
        (folder / "run.yaml").write_text(json.dumps(self._config(folder)))  # JSON is YAML

    def _config(self, folder: Path) -> dict[str, Any]:
        return {
            "run": {"output_dir": str(folder / "run")},
            "model": {"path": str(self._model)},
            "data": {"dataset": str(folder / "rows.jsonl")},
            "rewards": [{"path": f"{folder / 'reward.py'}:mean"}],
            "generation": {"num_generations": 4, "max_completion_length": 12, "request_timeout": 30.0},
            "engines": {
                "devices": ["cpu"] * self._arguments.engines,
                "dtype": "float32",
                "port": self._port,
                "stop_timeout": 4.0,
                "startup_timeout": 60.0,
                "max_restarts": 100,
                "extra_args": ["--token-seconds", "0.01"],
            },
            "learner": {"devices": ["cpu"], "start_timeout": 60.0, "step_timeout": 60.0, "max_restarts": 100},
            "training": {"max_steps": self._arguments.steps, "groups_per_step": 4, "learning_rate": 1e-3},
            "replay": {"replay_fraction": 0.5},
            "buffer": {"max_staleness": 2, "stall_timeout": 90.0},
            "weights": {"shared_memory_dir": str(folder / "shm"), "publish_timeout": 30.0},
            "checkpoint": {"save_steps": 2},
            "observe": {"metrics_port": -1},
        }


class Start:
    """One process that works on a training, until it ends or is killed."""

    def __init__(self, campaign: Campaign, folder: Path) -> None:
        self.folder = folder
        self.shared: set[int] = set()
        """Inodes of what its processes had mapped in memory."""
        self.lost_snapshots_guardian = False
        self._campaign = campaign
        self._output = folder / "output.txt"

    def run(self) -> Ending:
        campaign, arguments = self._campaign, self._campaign._arguments
        campaign.findings.starts += 1
        environment = {**this_checkout(), MARK: campaign._mark, "TMPDIR": str(self.folder / "tmp")}
        with self._output.open("a") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", TRAIN, str(self.folder / "run.yaml")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        begun, kills = time.monotonic(), list[Kill]()
        while campaign.findings.kills < arguments.kills:
            moment = draw(campaign._rng, campaign._start_seconds)
            if kills and moment.stage == "start":
                continue  # it has started
            if not self._wait_for(moment):
                break
            victim = self._kill(moment, time.monotonic() - begun)
            if victim is not None:
                kills.append(Kill(victim, moment.stage))
            if victim in FATAL:
                break
        has_hung = not self._ends_within(arguments.deadline)
        if has_hung:
            os.killpg(self._process.pid, signal.SIGKILL)
        return Ending(self._process.wait(), kills, has_hung)

    def last_words(self) -> str:
        return "".join(self._output.read_text().splitlines(keepends=True)[-30:])

    def _wait_for(self, moment: Moment) -> bool:
        """False: it ended before."""
        stage = Stage(moment, self.folder, self._campaign._arguments.steps)
        until = time.monotonic() + self._campaign._arguments.deadline
        while not stage.has_begun():
            if self._process.poll() is not None or time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        return not self._ends_within(moment.delay)

    def _kill(self, moment: Moment, seconds: float) -> str | None:
        """What was killed, if it had not just ended."""
        campaign = self._campaign
        self.shared |= shared_memory_of(process.pid for process in processes(campaign._mark))
        if moment.target == "guardian":  # which one is told while it lives
            of_snapshots = {process for process in processes(campaign._mark) if is_of_snapshots(process)}
        else:
            of_snapshots = set()
        try:
            target, victim = kill(moment, self._process.pid, campaign._mark, campaign._rng)
        except (ProcessLookupError, psutil.NoSuchProcess):
            return None
        self.lost_snapshots_guardian |= victim in of_snapshots
        findings = campaign.findings
        findings.kills += 1
        findings.by_target[target] += 1
        findings.by_stage[moment.stage] += 1
        say(f"kill {findings.kills:3}: {target}, stage {moment.stage}, {seconds:.2f} s after start {findings.starts}")
        return target

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


if __name__ == "__main__":
    sys.exit(main())
