"""Turns `auto` into names: devices, number formats and transport, from what this machine has.

Pure but for `Machine.here`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from asyncgrpo.config.root import RunConfig
from asyncgrpo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Machine:
    """What `auto` is decided by."""

    cores: tuple[int, ...]
    """Cores this process may use."""
    gpus: tuple[int, ...]
    """Indices of visible NVIDIA GPUs."""
    fast_bf16: bool
    """The CPU multiplies bfloat16 in hardware."""

    @classmethod
    def here(cls) -> Machine:
        return cls(cores=tuple(sorted(os.sched_getaffinity(0))), gpus=_visible_gpus(), fast_bf16=_cpu_has_bf16())


def resolve(config: RunConfig, machine: Machine) -> RunConfig:
    """The same configuration with nothing left to decide. Raises ConfigError when devices are missing."""
    engines, learners = _devices(config, machine)
    on_gpu = any(device.startswith("cuda") for device in engines)
    dtype = config.engines.dtype
    if dtype == "auto":
        dtype = "bfloat16" if on_gpu or machine.fast_bf16 else "float32"
    transport = config.weights.transport
    if transport == "auto":
        transport = "nccl" if on_gpu else "shared_memory"
    return config.model_copy(
        update={
            "engines": config.engines.model_copy(update={"devices": engines, "dtype": dtype}),
            "learner": config.learner.model_copy(update={"devices": learners}),
            "weights": config.weights.model_copy(update={"transport": transport}),
        }
    )


def _devices(config: RunConfig, machine: Machine) -> tuple[tuple[str, ...], tuple[str, ...]]:
    engines, learners = config.engines.devices, config.learner.devices
    if config.engines.urls:
        engines = ()
    if "auto" in engines or "auto" in learners:
        engine_auto, learner_auto = _automatic(machine, external=not engines)
        engines = tuple(engine_auto if device == "auto" else device for device in engines)
        learners = tuple(learner_auto if device == "auto" else device for device in learners)
    for section, devices in (("engines", engines), ("learner", learners)):
        for device in devices:
            _check_device(section, device, machine)
    return engines, learners


def _automatic(machine: Machine, external: bool) -> tuple[str, str]:
    """One engine and one learner rank: a GPU each, or half of the cores each."""
    if machine.gpus:
        if external:
            return "", f"cuda:{machine.gpus[0]}"
        if len(machine.gpus) == 1:
            raise ConfigError(
                "one GPU is visible, and engine and learner need one each; name both, for example "
                "--engines.devices='[cuda:0]' --learner.devices='[cuda:0]' with a lower engines.gpu_memory_utilization"
            )
        return f"cuda:{machine.gpus[0]}", f"cuda:{machine.gpus[1]}"
    if external:
        return "", "cpu"
    if len(machine.cores) < 2:
        return "cpu", "cpu"
    half = len(machine.cores) // 2
    return f"cpu:{_ranges(machine.cores[:half])}", f"cpu:{_ranges(machine.cores[half:])}"


def cores_of(device: str) -> tuple[int, ...]:
    """Cores of a `cpu:0-3,6` device; empty for `cpu`. Raises ValueError for anything else."""
    kind, _, text = device.partition(":")
    if kind != "cpu":
        raise ValueError(f"{device!r} is not a CPU device")
    cores: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return tuple(cores)


def gpus_of(device: str) -> tuple[int, ...]:
    """Indices of a `cuda:0,1` device. Raises ValueError for anything else."""
    kind, _, text = device.partition(":")
    if kind != "cuda":
        raise ValueError(f"{device!r} is not a GPU device")
    return tuple(int(part) for part in text.split(",")) if text else (0,)


def _check_device(section: str, device: str, machine: Machine) -> None:
    hint = "give cpu, cpu:0-3, cuda:0 or cuda:0,1"
    try:
        wanted = gpus_of(device) if device.startswith("cuda") else cores_of(device)
    except ValueError as error:
        raise ConfigError(f"{section}.devices: {device!r} is not a device; {hint}") from error
    available = machine.gpus if device.startswith("cuda") else machine.cores
    missing = [number for number in wanted if number not in available]
    if missing:
        raise ConfigError(f"{section}.devices: {device!r} names {missing}, but this machine has {list(available)}")


def _ranges(cores: tuple[int, ...]) -> str:
    """`(0, 1, 2, 5)` as `0-2,5`."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _visible_gpus() -> tuple[int, ...]:
    """From the driver's files: asking CUDA would create a context in the orchestrator."""
    folder = Path("/proc/driver/nvidia/gpus")
    count = len(list(folder.iterdir())) if folder.is_dir() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(range(count))
    return tuple(range(min(count, len([part for part in visible.split(",") if part.strip()]))))


def _cpu_has_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
