"""Both sides for real, on a tiny model: they compute the same, begin alike. Collected only where TRL is installed."""

import json
from dataclasses import asdict

import pytest
from learner_vs_trl import main
from parity_task import Settings, make_start
from parity_with_trl import SIDES, invalid
from shared import ROOT, run_child

from asyncgrpo.testing.tiny import write_rows

pytestmark = pytest.mark.slow


def test_both_learners_agree(tiny_model, capsys):
    cells = ["6/16", "6/16/corrected", "6/16/best/checkpointed"]
    sizes = ["--groups", "2", "--micro-batch", "8", "--threads", "1"]
    assert main(["--quick", "--model", str(tiny_model), "--cells", *cells, *sizes]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["agrees"] and line["largest_difference"] < 1e-4
    losses = {name: cell["trl"]["loss"] for name, cell in line["cells"].items()}
    assert losses["6/16"] != pytest.approx(losses["6/16/corrected"])


def test_trl_takes_steps_on_the_quickstarts_work(tiny_model, tmp_path):
    rows = [{"prompt": f"say {i}", "answer": [i]} for i in range(8)]
    overrides = [
        f"--model.path={tiny_model}",
        f"--data.dataset={write_rows(tmp_path / 'rows.jsonl', rows)}",
        f"--rewards=[{{path: {ROOT}/configs/rewards.py:repeats_numbers}}]",
        "--generation.max_completion_length=4",
    ]
    request = {
        "config": str(ROOT / "configs" / "quickstart_cpu.yaml"),
        "overrides": overrides,
        "steps": 2,
        "micro_batch": 16,
        "setting": "defaults",
        "threads": 1,
    }
    steps = run_child("step_trl.py", json.dumps(request), threads=1)["steps"]
    assert len(steps) == 2
    for step in steps:
        assert 32 <= step["tokens_trained"] <= 32 * 4
        parts = [step[f"{name}_seconds"] for name in ("generation", "scoring", "forward_backward", "optimiser")]
        assert min(parts) > 0 and sum(parts) == pytest.approx(step["step_seconds"])


def test_trl_learns_from_the_same_start(tmp_path):
    sizes = {"digits": 2, "steps": 2, "eval_steps": 1, "held_out": 16, "groups": 2, "generations": 4, "warmup": 1}
    settings = Settings(seed=0, start_score=0.1, folder=str(tmp_path), **sizes)
    make_start(settings)
    sides = {side: run_child(f"parity_{side}.py", json.dumps(asdict(settings)), threads=1) for side in SIDES}
    assert invalid([sides]) == []
    assert [step for step, _ in sides["trl"]["curve"]] == [0, 1, 2] and len(sides["trl"]["rewards"]) == 2
