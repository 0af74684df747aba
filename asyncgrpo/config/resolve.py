"""Turns `auto` into names: devices, number format and longest sequence; and the model's path into an absolute one.

Pure but for `Machine.here` and `locate_model`, which looks for folders.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from asyncgrpo.config.devices import AUTOMATIC, check_devices, cores_of, gpus_of, visible_gpus
from asyncgrpo.config.root import RunConfig
from asyncgrpo.errors import ConfigError

PROBE_TOKENS = 16
"""Room for the completions of the probe, where those of the run are shorter still."""


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
    """The same configuration with nothing left to decide, but for the dtype of engines that already run: they know it.

    Raises ConfigError when devices are missing.
    """
    engines, learners = _devices(config, machine)
    on_gpu = any(device.startswith("cuda") for device in engines)
    dtype = config.engines.dtype
    if dtype == "auto" and engines:
        dtype = "bfloat16" if on_gpu or machine.fast_bf16 else "float32"
    placed = {"devices": engines, "dtype": dtype, "max_model_len": _max_model_len(config)}
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"path": locate_model(config.model.path)}),
            "engines": config.engines.model_copy(update=placed),
            "learner": config.learner.model_copy(update={"devices": learners}),
        }
    )


def locate_model(path: str) -> str:
    """Absolute path of a model that is a folder here; a name on the hub as it is.

    What starts with `.`, `/` or `~`, or names an existing folder, is local.
    """
    folder = os.path.expanduser(path)
    is_local = path.startswith((".", "/", "~")) or os.path.isdir(folder)
    return os.path.abspath(folder) if is_local else path


def _max_model_len(config: RunConfig) -> int | None:
    longest_prompt = config.data.max_prompt_length
    if config.engines.max_model_len is not None or longest_prompt is None:
        return config.engines.max_model_len
    evaluated = config.evaluation.max_completion_length or 0
    return longest_prompt + max(config.generation.max_completion_length, evaluated, PROBE_TOKENS)


def _devices(config: RunConfig, machine: Machine) -> tuple[tuple[str, ...], tuple[str, ...]]:
    engines, learners = config.engines.managed_devices, config.learner.devices
    for name in set(AUTOMATIC) & {*engines, *learners}:
        of = machine if name == "auto" else replace(machine, gpus=())
        engine_auto, learner_auto = _automatic(of, external=not engines)
        engines = tuple(engine_auto if device == name else device for device in engines)
        learners = tuple(learner_auto if device == name else device for device in learners)
    for setting, devices in (("engines.devices", engines), ("learner.devices", learners)):
        _check_present(setting, devices, machine)
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


def _check_present(setting: str, devices: tuple[str, ...], machine: Machine) -> None:
    try:
        check_devices(setting, devices)  # again: what `auto` became may be named beside it
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for device in devices:
        wanted, available = (gpus_of(device), machine.gpus) if "cuda" in device else (cores_of(device), machine.cores)
        missing = [number for number in wanted if number not in available]
        if missing:
            no_gpu = "cuda" in device and not machine.gpus
            remedy = f"no GPU is visible; for cores set {setting} to [cpu:auto]" if no_gpu else "name others, or auto"
            raise ConfigError(
                f"{setting}: {device!r} names {missing}, but this machine has {list(available)}; {remedy}"
            )


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
    installed = len(list(folder.iterdir())) if folder.is_dir() else 0
    listed = visible_gpus(os.environ)
    return tuple(range(installed if listed is None or not installed else len(listed)))


def _cpu_has_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
