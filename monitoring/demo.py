"""Starts a short run on fake engines and a Prometheus that scrapes it, and draws every panel of every dashboard.

    python monitoring/demo.py FOLDER [--steps 60]        needs Debian's package `prometheus`

Leaves run.png and compare.png in FOLDER. Exit code 1 if a panel that should have data has none.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from preview import View, draw_all
from querying import prometheus_of
from scripted_run import NAME

SCRAPE_SECONDS = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        command = [sys.executable, str(Path(__file__).with_name("scripted_run.py")), str(work), str(work / "targets")]
        run = subprocess.Popen([*command, "--steps", str(arguments.steps)])
        try:
            with prometheus_of(work / "targets", work / "prometheus", SCRAPE_SECONDS) as api:
                began = None
                while run.poll() is None:
                    time.sleep(0.2)
                    if api.at(f'asyncgrpo_learner_step{{run="{NAME}"}} > 0'):
                        ended = time.time()
                        began = ended if began is None else began
                if run.returncode or began is None:
                    print(f"the run ended with {run.returncode}; nothing to show", file=sys.stderr)
                    return 1
                empty = draw_all(View(api, NAME, began, ended, SCRAPE_SECONDS), arguments.folder)
        finally:
            run.kill()
            run.wait()
    return 1 if any(empty.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
