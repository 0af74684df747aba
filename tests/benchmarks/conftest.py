"""The benchmarks are scripts: their folder has to be on the path. What needs TRL is collected only where TRL is."""

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "benchmarks"))

collect_ignore = [] if importlib.util.find_spec("trl") else ["test_with_trl.py"]
