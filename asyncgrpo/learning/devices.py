"""What a device of the configuration means for a rank's process. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from asyncgrpo.errors import ConfigError

PATTERN = re.compile(r"auto|cpu|cpu:\d+(-\d+)?(,\d+(-\d+)?)*|cuda(:\d+)?")


def check_device(device: str) -> None:
    """Raises ConfigError for anything but `auto`, `cpu`, `cpu:0-3`, `cuda` and `cuda:N`."""
    if not PATTERN.fullmatch(device):
        raise ConfigError(f"learner.devices: {device!r} is not one device; give auto, cpu, cpu:0-3, cuda or cuda:1")


def cores(device: str) -> set[int] | None:
    """Cores of `cpu:0-3,8`; None where the device does not name any. Raises ConfigError for cores we were not given."""
    kind, _, ranges = device.partition(":")
    if kind != "cpu" or not ranges:
        return None
    named: set[int] = set()
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        named.update(range(int(first), int(last or first) + 1))
    allowed = os.sched_getaffinity(0)
    if not named or not named <= allowed:
        raise ConfigError(f"learner.devices: {device!r} is not within the cores of this process, {sorted(allowed)}")
    return named


def visible_gpus(device: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Environment that shows a rank only its own GPU, which is then `cuda:0` to it.

    `cuda:1` is the second of the GPUs that we ourselves may see.
    """
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return {}
    mine = environment.get("CUDA_VISIBLE_DEVICES")
    if mine is None:
        return {"CUDA_VISIBLE_DEVICES": index or "0"}
    listed = [entry.strip() for entry in mine.split(",") if entry.strip()]
    position = int(index or 0)
    if position >= len(listed):
        raise ConfigError(f"learner.devices: {device!r}, but CUDA_VISIBLE_DEVICES={mine!r} shows {len(listed)} GPUs")
    return {"CUDA_VISIBLE_DEVICES": listed[position]}
