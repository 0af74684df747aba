"""The benchmarks are scripts: their folder has to be on the path. What needs TRL, or the statistics that are installed
with it, is collected only where those are."""

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "benchmarks"))

NEEDS = {"test_with_trl.py": "trl", "test_parity_statistics.py": "statsmodels"}
collect_ignore = [file for file, module in NEEDS.items() if importlib.util.find_spec(module) is None]
