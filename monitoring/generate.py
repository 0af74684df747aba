"""Writes dashboards/*.json from plain Python. `--check` only says whether they are current.

python monitoring/generate.py
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from compare_runs import COMPARE_RUNS
from one_run import ONE_RUN
from panels import Dashboard

DASHBOARDS: Mapping[str, Dashboard] = {"run.json": ONE_RUN, "compare.json": COMPARE_RUNS}
FOLDER = Path(__file__).resolve().parent / "dashboards"

NOT_SHOWN: Mapping[str, str] = {
    "asyncgrpo_process_virtual_memory_bytes": "says nothing: CUDA and Arrow reserve terabytes",
    "asyncgrpo_process_open_fds": "of use once something leaks; then by hand",
    "asyncgrpo_process_max_fds": "constant",
    "asyncgrpo_eval_step": "the held-out curves change where it does",
    "asyncgrpo_eval_policy_version": "the same, but for evaluations beside publishes",
}
"""Families that no panel shows, and why."""


def render(dashboard: Dashboard) -> str:
    return json.dumps(dashboard.to_json(), indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [name for name, each in DASHBOARDS.items() if not _is_current(FOLDER / name, render(each))]
    for name in stale:
        if check:
            print(f"dashboards/{name} is not what monitoring/generate.py writes; run it", file=sys.stderr)
        else:
            (FOLDER / name).write_text(render(DASHBOARDS[name]), encoding="utf-8")
    return 1 if check and stale else 0


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
