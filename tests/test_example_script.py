"""The example script runs as it stands, on fake engines; tests/vllm has it on real ones."""

import runpy
from pathlib import Path

from run_cases import FAKE_ENGINE, Run

from asyncgrpo.observe.evaluations import read_evaluations
from asyncgrpo.observe.ledger_file import read_ledger
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.testing.tiny import make_tiny_model

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "examples" / "lora_two_rewards.py"


def test_the_reward_that_sometimes_fails_costs_its_groups_only(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", tied=False, architecture="llama")
    arguments = [str(model), "--steps=3", f"--out={tmp_path / 'run'}", "--devices", "cpu"]
    outcome = runpy.run_path(str(SCRIPT))["main"](arguments, engine_module=FAKE_ENGINE)
    assert (outcome.steps, outcome.interrupted) == (3, False)

    run = Run(tmp_path)
    failures = sum(step.get("reward_failures/brevity/raised", 0) for step in run.steps)
    entries = read_ledger(tmp_path / "run" / "ledger.jsonl")
    dropped = [entry.prompt_id for entry in entries if entry.reason == "reward"]
    assert failures >= 1 and len(dropped) >= failures
    assert all(dict(row["rewards"]).keys() == {"numbers", "brevity"} for row in run.trained)
    evaluations = read_evaluations(RunFolder(tmp_path / "run").evaluation_file)
    assert [(record["step"], record["error"]) for record in evaluations] == [(0, None), (3, None)]
