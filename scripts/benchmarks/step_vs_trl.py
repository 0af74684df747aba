"""A whole step of the quickstart, asynchronous against TRL's synchronous GRPOTrainer: same prompts, rewards and sizes.

    python scripts/benchmarks/step_vs_trl.py            # about ten minutes on two cores
    python scripts/benchmarks/step_vs_trl.py --quick    # fewer steps, and TRL in float32 only

Needs TRL (pip install -e '.[bench]'), vLLM (scripts/setup.sh) and the quickstart's model and task
(python scripts/quickstart/prepare.py). Close other programs: both sides want every core.

Ours is `asyncgrpo train configs/quickstart_cpu.yaml` with a real vLLM server: engine and learner share the cores. TRL
gets all cores for one thing after the other. Both take one optimiser update per step over the same number of samples,
with AdamW at the same learning rate. TRL runs once per --settings:

    float32    without gradient checkpointing, as we train; generates with transformers, which is TRL's default
    defaults   TRL's own bfloat16 autocast and gradient checkpointing; generates with transformers
    vllm       as float32, but generates with vLLM inside TRL's process (vllm_mode=colocate). TRL 1.16 supports vLLM up
               to 0.31 and warns of ours. Its other mode, a vLLM server, sends weights over NCCL and so needs CUDA:
               TRL raises NotImplementedError for a CPU

step_ratio is TRL's seconds / ours for the faster of `float32` and `defaults`, step_ratio_vllm for `vllm`; above 1 we
are faster. A step lasts from the end of the previous one; the first --skip steps are left out, and
the last one, in which nothing more is generated for us. The rest gives means: what a run of many steps takes. (Medians
would hide the steps that wait, if most do not.)
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared import ASSETS, ROOT, Figures, cores, print_figures, print_table, ratio, run_child, this_checkout, versions

from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.summary import summarise

CONFIG = ROOT / "configs" / "quickstart_cpu.yaml"
MICRO_BATCH = 16
"""TRL's samples in one pass: half of a step's, so that it accumulates over two."""
SETTINGS = ("float32", "defaults", "vllm")
OURS = (
    "step_seconds",
    "tokens_trained",
    "waiting_seconds",
    "training_seconds",
    "snapshot_seconds",
    "publish_seconds",
    "generation_idle_seconds",
)
Record = Mapping[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    check_assets(Path(arguments.assets))
    overrides = asset_overrides(Path(arguments.assets))
    with tempfile.TemporaryDirectory() as folder:
        ours = our_steps(overrides, arguments.steps, Path(folder))
    theirs = {setting: trl_steps(overrides, setting, arguments) for setting in arguments.settings}
    figures = compare(ours, theirs, arguments.skip)
    print_steps(figures)
    print_figures(figures | {"threads": arguments.threads, "versions": versions()})
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="6 steps; without --settings only float32")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, help="TRL's (default: all)")
    parser.add_argument("--steps", type=int, default=12, help="steps on each side (default: %(default)s)")
    parser.add_argument("--skip", type=int, default=3, help="first steps that do not count (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=cores(), help="TRL's threads (default: all, %(default)s)")
    parser.add_argument("--assets", default=str(ASSETS), help="folder that prepare.py made (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.steps = 6
    arguments.settings = arguments.settings or list(SETTINGS[:1] if arguments.quick else SETTINGS)
    if arguments.skip >= arguments.steps - 1:
        parser.error(f"--skip {arguments.skip} and the last one leave none of {arguments.steps} steps")
    return arguments


def check_assets(assets: Path) -> None:
    """Exits with the remedy where the model or the task is missing."""
    for needed in (assets / "model" / "config.json", assets / "train.jsonl"):
        if not needed.is_file():
            sys.exit(f"{needed} is missing; make it with: python scripts/quickstart/prepare.py {assets}")


def asset_overrides(assets: Path) -> list[str]:
    return [f"--model.path={assets.resolve() / 'model'}", f"--data.dataset={assets.resolve() / 'train.jsonl'}"]


def our_steps(overrides: Sequence[str], steps: int, folder: Path) -> list[dict[str, Any]]:
    """Records of a run of the quickstart. Exits with its last words if it fails."""
    run = folder / "run"
    settings = [*overrides, f"--training.max_steps={steps}", f"--run.output_dir={run}"]
    command = [sys.executable, "-m", "asyncgrpo.cli.main", "train", str(CONFIG), *settings]
    child = subprocess.run(command, cwd=ROOT, env=this_checkout(), capture_output=True, text=True)
    if child.returncode:
        sys.exit(f"asyncgrpo train failed:\n{child.stdout[-2000:]}\n{child.stderr[-2000:]}")
    return read_metrics(RunFolder(run).metrics_file)


def trl_steps(overrides: Sequence[str], setting: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    request = {
        "config": str(CONFIG),
        "overrides": list(overrides),
        "steps": arguments.steps,
        "micro_batch": MICRO_BATCH,
        "setting": setting,
        "threads": arguments.threads,
    }
    steps: list[dict[str, Any]] = run_child("step_trl.py", json.dumps(request), threads=arguments.threads)["steps"]
    return steps


def compare(ours: Sequence[Record], theirs: Mapping[str, Sequence[Record]], skip: int) -> Figures:
    """Means of both sides between the first `skip` steps and the last, and their ratios."""
    counted = ours[skip:-1]
    learner = sorted({name for record in counted for name in record if name.startswith("learner_seconds/")})
    mine = means(counted, (*OURS, *learner))
    trl = {setting: means(steps[skip:-1], tuple(steps[0])) for setting, steps in theirs.items()}
    ratios = {setting: ratio(each["step_seconds"], mine["step_seconds"]) for setting, each in trl.items()}
    by_transformers = [ratios[setting] for setting in trl if setting != "vllm"]
    return {
        "step_ratio": min(by_transformers, default=None),
        **{f"step_ratio_{setting}": found for setting, found in ratios.items()},
        **{f"token_ratio_{setting}": ratio(speed(mine), speed(each)) for setting, each in trl.items()},
        "asyncgrpo": mine | {"verdict": summarise(counted)["verdict"]},
        "trl": trl,
        "steps_counted": len(counted),
    }


def means(records: Sequence[Record], names: Sequence[str]) -> dict[str, float]:
    return {name: statistics.fmean(record[name] for record in records) for name in names}


def speed(side: Mapping[str, float]) -> float:
    """Trained tokens per second."""
    return side["tokens_trained"] / side["step_seconds"]


def print_steps(figures: Figures) -> None:
    sides = {"ours": figures["asyncgrpo"], **{f"TRL {name}": side for name, side in figures["trl"].items()}}
    for title, side in sides.items():
        rows = [[name, value if isinstance(value, str) else f"{value:.2f}"] for name, value in side.items()]
        print_table(f"{title}: means of {figures['steps_counted']} steps", ["", title], rows)
    for setting in figures["trl"]:
        print(f"TRL's step ({setting}) takes {figures[f'step_ratio_{setting}']:.2f} times as long as ours")


if __name__ == "__main__":
    sys.exit(main())
