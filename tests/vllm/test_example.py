"""The example script with real vLLM: trained with LoRA, evaluated, merged, and loaded by transformers and by vLLM."""

import asyncio
import json
import runpy
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from vllm_cases import resolved, serving

from asyncgrpo.cli.main import main
from asyncgrpo.testing import contract
from asyncgrpo.testing.tiny import make_tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "examples" / "lora_two_rewards.py"


def test_a_script_of_ones_own_from_two_rewards_to_a_merged_model(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", tied=False, architecture="llama")
    run = tmp_path / "run"
    script = runpy.run_path(str(SCRIPT))
    outcome = script["main"]([str(model), "--steps=3", f"--out={run}", "--devices", "cpu"])
    assert (outcome.steps, outcome.interrupted) == (3, False)

    lines = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
    assert [(line["step"], line["error"]) for line in lines] == [(0, None), (3, None)]
    rows = pq.read_table(run / "rollouts" / "step_000001.parquet").to_pylist()
    assert list(dict(rows[0]["rewards"])) == ["numbers", "brevity"]
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(step.get("reward_failures/brevity/raised", 0) for step in steps) >= 1

    assert main(["merge", str(run), "--out", str(tmp_path / "merged")]) == 0
    with serving(resolved(tmp_path / "merged"), tmp_path / "merged", tmp_path) as engine:
        # Log-probabilities of vLLM against those of transformers, both from the merged folder.
        asyncio.run(contract.check_logprobs(engine.spec.url, tmp_path / "merged"))
