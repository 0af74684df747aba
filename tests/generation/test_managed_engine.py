"""A managed engine: what it is started with, and that its process is watched and ended. The fake one stands in."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError, EngineError
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.server import ManagedEngine
from asyncgrpo.generation.spec import (
    VLLM_MODULE,
    EngineSpec,
    check_ports,
    engine_specs,
    vllm_arguments,
    vllm_environment,
)

FAKE = "asyncgrpo.testing.fake_engine"


def configured(**sections: Any) -> RunConfig:
    engines = {"dtype": "float32", "devices": ["cpu:0"], "stop_timeout": 4.0, **sections.pop("engines", {})}
    return RunConfig.model_validate({"engines": engines, **sections})


def arguments(config: RunConfig, device: str = "cpu:0") -> tuple[dict[str, str], list[str]]:
    """Options with their values, and flags."""
    words = vllm_arguments(config, "/models/tiny", device, 8123, 7, "some_backend")
    options: dict[str, str] = {}
    flags: list[str] = []
    while words:
        word = words.pop(0)
        assert word.startswith("--")
        if words and not words[0].startswith("--"):
            options[word] = words.pop(0)
        else:
            flags.append(word)
    return options, flags


def test_the_command_line_makes_log_probabilities_the_learners() -> None:
    options, flags = arguments(configured())
    assert json.loads(options.pop("--weight-transfer-config")) == {"backend": "some_backend"}
    assert options == {
        "--host": "127.0.0.1",
        "--port": "8123",
        "--model": "/models/tiny",
        "--served-model-name": "policy",
        "--seed": "7",
        "--dtype": "float32",
        "--logprobs-mode": "processed_logprobs",
        "--generation-config": "vllm",
        "--api-server-count": "1",
        "--block-size": "32",
    }
    assert flags == ["--enable-scale-out", "--disable-uvicorn-access-log"]


def test_limits_and_further_arguments_are_passed_on() -> None:
    engines = {"max_model_len": 512, "max_num_seqs": 32, "enforce_eager": True, "extra_args": ["--swap-space", "1"]}
    options, flags = arguments(configured(engines=engines, model={"trust_remote_code": True}))
    assert (options["--max-model-len"], options["--max-num-seqs"], options["--swap-space"]) == ("512", "32", "1")
    assert {"--enforce-eager", "--trust-remote-code"} <= set(flags)
    assert "--gpu-memory-utilization" not in options


def test_the_users_block_size_comes_last_and_so_wins() -> None:
    assert arguments(configured(engines={"extra_args": ["--block-size", "64"]}))[0]["--block-size"] == "64"


def test_a_float32_head_is_asked_for_where_the_learner_has_one() -> None:
    assert "--hf-overrides" not in arguments(configured())[0]
    config = configured(training={"cast_lm_head_to_fp32": True}, engines={"extra_args": ["--swap-space", "1"]})
    options, _ = arguments(config)
    assert (json.loads(options["--hf-overrides"]), options["--swap-space"]) == ({"head_dtype": "float32"}, "1")


def test_engines_swap_adapters_where_that_is_how_versions_travel() -> None:
    config = configured(lora={"lora_r": 9}, weights={"transport": "lora"}, buffer={"max_staleness": 2})
    words = vllm_arguments(config, "/models/tiny", "cpu:0", 8123, 7, None)
    assert words[words.index("--max-lora-rank") + 1] == "16"
    assert words[words.index("--max-loras") + 1] == "4"
    assert "--enable-lora" in words
    assert "--weight-transfer-config" not in words
    assert vllm_environment(config, "cpu:0", {})["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    merged = configured(lora={"lora_r": 9})
    assert "--enable-lora" not in arguments(merged)[1]
    assert vllm_environment(merged, "cpu:0", {})["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "False"


def test_gpus_of_one_engine_are_tensor_parallel() -> None:
    config = configured(engines={"gpu_memory_utilization": 0.5})
    options, _ = arguments(config, "cuda:2,3")
    assert (options["--tensor-parallel-size"], options["--gpu-memory-utilization"]) == ("2", "0.5")
    assert "--block-size" not in options  # vLLM's own is small enough
    environment = vllm_environment(config, "cuda:2,3", {})
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in environment


def test_gpus_are_counted_in_those_that_we_see_ourselves() -> None:
    environment = vllm_environment(configured(), "cuda:0", {"CUDA_VISIBLE_DEVICES": "2,3"})
    assert environment["CUDA_VISIBLE_DEVICES"] == "2"
    with pytest.raises(ConfigError, match="'cuda:2', but CUDA_VISIBLE_DEVICES='2,3' shows 2 GPUs"):
        vllm_environment(configured(), "cuda:2", {"CUDA_VISIBLE_DEVICES": "2,3"})


def test_only_eager_engines_on_cpus_are_kept_from_compiling() -> None:
    eager = configured(engines={"enforce_eager": True})
    assert vllm_environment(eager, "cpu", {})["TORCH_COMPILE_DISABLE"] == "1"
    assert "TORCH_COMPILE_DISABLE" not in vllm_environment(eager, "cuda:0", {})
    assert "TORCH_COMPILE_DISABLE" not in vllm_environment(configured(), "cpu", {})


def test_the_environment_opens_the_routes_and_pins_cores() -> None:
    config = configured(engines={"cpu_kv_cache_gib": 3})
    pinned, free = vllm_environment(config, "cpu:0-1,3", {}), vllm_environment(config, "cpu", {})
    assert pinned["VLLM_SERVER_DEV_MODE"] == free["VLLM_SERVER_DEV_MODE"] == "1"
    assert pinned["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert (pinned["VLLM_CPU_OMP_THREADS_BIND"], pinned["OMP_NUM_THREADS"]) == ("0,1,3", "3")
    assert free["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "OMP_NUM_THREADS" not in free


def test_each_engine_has_its_own_port_seed_and_log(tmp_path: Path) -> None:
    config = configured(engines={"devices": ["cpu:0", "cpu:1"]}, run={"seed": 5})
    specs = engine_specs(config, "/models/tiny", tmp_path, "b")
    assert [spec.name for spec in specs] == ["engine-0", "engine-1"]
    assert len({spec.url for spec in specs}) == 2
    assert [spec.log_path.name for spec in specs] == ["engine-0.log", "engine-1.log"]
    for spec, seed in zip(specs, ("5", "6"), strict=True):
        assert spec.command[:4] == (sys.executable, "-P", "-m", VLLM_MODULE)
        assert spec.command[spec.command.index("--seed") + 1] == seed
        assert spec.url.endswith(":" + spec.command[spec.command.index("--port") + 1])


def test_ports_are_none_that_the_system_gives_to_connections_and_no_two_are_the_same(tmp_path: Path) -> None:
    """Also among so many that some would be by chance."""
    specs = engine_specs(configured(engines={"devices": ["cpu"] * 500}), "/models/tiny", tmp_path, "b")
    ports = {int(spec.url.rpartition(":")[2]) for spec in specs}
    assert len(ports) == 500
    assert (min(ports) >= 20_000, max(ports) < 32_000) == (True, True)
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert first_given < 32_000 or max(ports) < first_given


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = configured(engines={"port": port - 1, "devices": ["cpu", "cpu"]})
        for refused in (lambda: check_ports(config), lambda: engine_specs(config, "m", tmp_path, "b")):
            with pytest.raises(ConfigError, match=rf"engines.port: port {port} is taken; choose another, or 0"):
                refused()
    check_ports(configured())


def spec_of(tmp_path: Path, *command: str, stop_timeout: float = 4.0) -> EngineSpec:
    return EngineSpec(
        name="engine-0",
        command=command,
        environment={"GREETING": "hello"},
        url="http://127.0.0.1:1",
        log_path=tmp_path / "engine-0.log",
        startup_timeout=10.0,
        stop_timeout=stop_timeout,
    )


@pytest.mark.slow
async def test_a_managed_engine_is_started_watched_and_stopped(tiny_model: Path, tmp_path: Path) -> None:
    config = configured()
    (spec,) = engine_specs(config, str(tiny_model), tmp_path, "b", FAKE)
    engine, before = ManagedEngine(spec), set(psutil.Process().children(recursive=True))
    async with asyncio.timeout(60), EngineClient(spec.url, spec.name, config, "0") as client:
        await engine.start()
        watching = asyncio.create_task(engine.watch())
        await until_healthy(client)
        assert (await client.server_info())["vllm_config"]["weight_transfer_config"] == {"backend": "b"}
        assert not watching.done()
        started = set(psutil.Process().children(recursive=True)) - before
        assert len(started) == 2, "the guardian and the server"
        begun = time.monotonic()
        await engine.stop()
        assert time.monotonic() - begun < 9.0
        with pytest.raises(EngineError, match="engine-0 ended"):
            await watching
        assert not any(process.is_running() for process in started)
        await engine.stop()
        with pytest.raises(EngineError, match="cannot be reached"):
            await client.health()


async def until_healthy(client: EngineClient) -> None:
    while True:
        try:
            return await client.health()
        except EngineError:
            await asyncio.sleep(0.1)


async def test_a_process_that_ends_is_reported_with_its_last_words(tmp_path: Path) -> None:
    script = "import os, sys; print(os.environ['GREETING']); sys.exit('ValueError: no such model')"
    engine = ManagedEngine(spec_of(tmp_path, sys.executable, "-c", script))
    async with asyncio.timeout(10):
        await engine.start()
        with pytest.raises(EngineError) as caught:
            await engine.watch()
        await engine.stop()
    lines = str(caught.value).splitlines()
    assert lines[0] == f"engine-0 ended with exit code 1; last lines of {tmp_path}/engine-0.log:"
    assert lines[1:] == ["    hello", "    ValueError: no such model"]


async def test_a_deaf_process_is_stopped_within_the_timeout(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(99)"
    engine = ManagedEngine(spec_of(tmp_path, sys.executable, "-c", deaf, stop_timeout=1.0))
    before = set(psutil.Process().children(recursive=True))
    async with asyncio.timeout(10):
        await engine.start()
        while "up" not in engine.log_tail():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        begun = time.monotonic()
        await engine.stop()
        assert time.monotonic() - begun < 8.0
    assert not any(process.is_running() for process in set(psutil.Process().children(recursive=True)) - before)


async def test_an_engine_that_was_never_started_can_be_stopped(tmp_path: Path) -> None:
    await ManagedEngine(spec_of(tmp_path, "true")).stop()


PARENT = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"])
session = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("up", child.pid, session.pid, flush=True)
time.sleep(1000)
"""
"""Starts a child, and one with a session of its own."""


async def family(engine: ManagedEngine) -> list[psutil.Process]:
    """The command's two children, once they are there."""
    while "up" not in engine.log_tail():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return [psutil.Process(int(word)) for word in engine.log_tail().split()[-2:]]


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and process.status() != "zombie"]


def guardian_of(engine: ManagedEngine) -> int:
    (guardian,) = (
        child.pid for child in psutil.Process().children() if str(engine.spec.log_path.parent) in child.cmdline()
    )
    return guardian


async def test_killing_the_guardian_leaves_nothing_of_the_engine(tmp_path: Path) -> None:
    """Not even what has left the session, for it has been seen."""
    engine = ManagedEngine(spec_of(tmp_path, sys.executable, "-c", PARENT, str(tmp_path)))
    async with asyncio.timeout(20):
        await engine.start()
        processes = await family(engine)
        assert running(processes) == processes
        watching = asyncio.create_task(engine.watch())
        await asyncio.sleep(0.5)
        os.kill(guardian_of(engine), signal.SIGKILL)
        with pytest.raises(EngineError, match="engine-0 ended with exit code -9"):
            await watching
        assert running(processes) == []


async def test_a_guardian_that_is_stuck_leaves_nothing_of_the_engine(tmp_path: Path) -> None:
    engine = ManagedEngine(spec_of(tmp_path, sys.executable, "-c", PARENT, str(tmp_path), stop_timeout=0.3))
    async with asyncio.timeout(20):
        await engine.start()
        processes = await family(engine)
        os.kill(guardian_of(engine), signal.SIGSTOP)
        begun = time.monotonic()
        await engine.stop()
        assert time.monotonic() - begun < 9.0
        assert running(processes) == []


async def test_an_engine_that_is_over_kills_nobody_who_got_its_process_id(tmp_path: Path) -> None:
    engine = ManagedEngine(spec_of(tmp_path, sys.executable, "-c", "pass"))
    command = [sys.executable, "-c", PARENT]
    stranger = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)  # noqa: ASYNC220 (at once)
    try:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        children = psutil.Process(stranger.pid).children()
        async with asyncio.timeout(20):
            await engine.start()
            with pytest.raises(EngineError, match="exit code 0"):
                await engine.watch()
            guardian: Any = SimpleNamespace(pid=stranger.pid, returncode=0, wait=lambda: asyncio.sleep(0))
            engine._guardian = guardian
            await engine.stop()
            with pytest.raises(EngineError, match="exit code 0"):
                await engine.watch()
            engine._is_over = False  # its end was never seen
            await engine.stop()
        assert (len(children), running(children), stranger.poll()) == (2, children, None)
    finally:
        for process in [*psutil.Process(stranger.pid).children(), stranger]:
            process.kill()
        stranger.communicate()
