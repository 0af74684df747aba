"""What the name of a device means: which cores, or which GPUs. The one place that reads these names.

    cpu            the CPU, no cores named        cuda          the first GPU
    cpu:0-3,8      these cores                    cuda:1        the second of the GPUs that we may see
    cpu:auto       half of the cores              cuda:0,1      two of them, for a tensor parallel engine
    auto           half of what there is

Invariant: `cuda:N` counts the GPUs of CUDA_VISIBLE_DEVICES, for engines and learner alike.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from asyncgrpo.errors import ConfigError

AUTOMATIC = ("auto", "cpu:auto")
VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEVICE = re.compile(r"auto|cpu|cpu:auto|cpu:\d+(-\d+)?(,\d+(-\d+)?)*|cuda|cuda:\d+(,\d+)*")
_GPU = re.compile(r"\d+|(GPU|MIG)-\S+")


def check_devices(setting: str, devices: Sequence[str], gpus_each: int | None = None) -> None:
    """Raises ValueError in one line for a name that is none, and for a GPU that is named twice.

    gpus_each: most GPUs of one entry.
    """
    taken: set[int] = set()
    for device in devices:
        if not _DEVICE.fullmatch(device):
            raise ValueError(f"{setting}: {device!r} is not a device; give auto, cpu, cpu:0-3, cpu:auto or cuda:0")
        if any(last < first for first, last in _ranges(device)):
            raise ValueError(f"{setting}: {device!r} ends before it begins; write the lower core first")
        gpus = gpus_of(device)
        if gpus_each is not None and len(gpus) > gpus_each:
            separate = ", ".join(f"cuda:{gpu}" for gpu in gpus)
            raise ValueError(f"{setting}: {device!r} is not one device; give one entry for each, [{separate}]")
        for gpu in gpus:
            if gpu in taken:
                raise ValueError(f"{setting}: cuda:{gpu} is named twice; give each entry a GPU of its own")
            taken.add(gpu)


def cores_of(device: str) -> tuple[int, ...]:
    """Cores of `cpu:0-3,6`; none for a device that names none."""
    return tuple(itertools.chain.from_iterable(range(first, last + 1) for first, last in _ranges(device)))


def gpus_of(device: str) -> tuple[int, ...]:
    """Numbers of `cuda:0,1`; `cuda` is the first. None for other devices."""
    kind, _, text = device.partition(":")
    if kind != "cuda":
        return ()
    return tuple(int(part) for part in text.split(",")) if text else (0,)


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """CUDA's names of the GPUs in CUDA_VISIBLE_DEVICES; None: all. Like CUDA, it stops at the first that is none."""
    listed = environment.get(VISIBLE)
    if listed is None:
        return None
    return tuple(itertools.takewhile(_GPU.fullmatch, (entry.strip() for entry in listed.split(","))))


def gpu_environment(device: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Environment that shows a process the GPUs of `device` only, which it then counts from 0. Empty for CPU devices.

    Raises ConfigError for a GPU that `environment` does not show.
    """
    gpus, visible = gpus_of(device), visible_gpus(environment)
    if not gpus:
        return {}
    if visible is None:
        return {VISIBLE: ",".join(map(str, gpus))}
    if max(gpus) >= len(visible):
        raise ConfigError(f"device {device!r}, but {VISIBLE}={environment[VISIBLE]!r} shows {len(visible)} GPUs")
    return {VISIBLE: ",".join(visible[gpu] for gpu in gpus)}


def _ranges(device: str) -> list[tuple[int, int]]:
    """First and last core of each part of `cpu:0-3,6`."""
    kind, _, text = device.partition(":")
    if kind != "cpu" or text in ("", "auto"):
        return []
    parts = (part.partition("-") for part in text.split(","))
    return [(int(first), int(last or first)) for first, _, last in parts]
