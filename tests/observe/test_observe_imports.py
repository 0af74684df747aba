import subprocess
import sys


def test_observe_loads_neither_torch_nor_matplotlib() -> None:
    modules = "metrics, server, recorder, progress, summary, logs, steps, run_folder, timing"
    code = f"import sys; from asyncgrpo.observe import {modules}; print({{'torch', 'matplotlib'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
