"""The scripts of docs/coming_from_trl.md run as they are written there, but for model, data, devices and length."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from run_cases import Run, engine_beside

from asyncgrpo import AsyncGRPOConfig, AsyncGRPOTrainer
from asyncgrpo.testing.fake_engine import FakeEngine

PAGE = (Path(__file__).parents[1] / "docs" / "coming_from_trl.md").read_text()
BOTH, *SCRIPTS = re.findall(r"```python\n# (?:both|here).*?\n(.*?)```", PAGE, re.DOTALL)
ROWS = [{"prompt": f"What is {i} + {i}?", "answer": 2 * i} for i in range(6)]


def run_script(text: str, model: Path, folder: Path, engine: FakeEngine, steps: int) -> tuple[str, dict[str, Any]]:
    """Returns the name of its run folder, and the settings that it gave."""
    given: dict[str, Any] = {}

    def config(**settings: Any) -> AsyncGRPOConfig:
        given.update(settings)
        small = {
            "output_dir": str(folder / Path(settings["output_dir"]).name / "run"),
            "vllm_server_base_url": engine.url,
            "vllm_dtype": "float32",
            "learner_mode": "inline",
            "learner_devices": ["cpu"],
            "shared_memory_dir": str(folder),
            "num_generations": 2,
            "groups_per_step": 2,
            "max_steps": steps,
            "max_completion_length": 8,
        }
        return AsyncGRPOConfig(**settings | small)

    def trainer(model: str, **arguments: Any) -> AsyncGRPOTrainer:
        assert model == "Qwen/Qwen2.5-0.5B-Instruct"
        return AsyncGRPOTrainer(str(names["tiny"]), **arguments)

    def load_dataset(name: str, split: str) -> list[dict[str, Any]]:
        assert (name, split) == ("trl-lib/DeepMath-103K", "train")
        return ROWS

    names = {
        "AsyncGRPOConfig": config,
        "AsyncGRPOTrainer": trainer,
        "load_dataset": load_dataset,
        "dataset": ROWS,
        "tiny": model,
    }
    own = re.sub(r"^from (datasets|asyncgrpo) import .*\n", "", text, flags=re.MULTILINE)
    exec(compile(BOTH + own, "docs/coming_from_trl.md", "exec"), names)
    return Path(given["output_dir"]).name, given


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_a_script_of_the_page(number: int, tiny_model: Path, tmp_path: Path) -> None:
    starts = [1, 2] if "once more" in SCRIPTS[number] else [2]
    with engine_beside(tiny_model) as engine:
        for steps in starts:
            name, given = run_script(SCRIPTS[number], tiny_model, tmp_path, engine, steps)
    run = Run(tmp_path / name)
    assert [step["step"] for step in run.steps] == [1, 2]
    assert (run.path / "final_model" / "config.json").is_file()
    start = (run.path / "incarnation").read_text().strip().partition(".")[2]
    assert start.partition("-")[0] == str(len(starts) - 1)
    sample = run.trained[0]
    assert dict(sample["rewards"]).keys() == {"correct"} | ({"brief"} if "reward_weights" in given else set())
    if "system_prompt" in given:
        assert json.loads(sample["prompt"])[0] == {"role": "system", "content": given["system_prompt"]}
    if "reward_weights" in given:
        rewards = dict(sample["rewards"])
        assert sample["reward"] == pytest.approx(rewards["correct"] + 0.2 * rewards["brief"])


def test_the_page_has_a_script_for_each_subject() -> None:
    names = [re.findall(r'output_dir="runs/(\w+)"', script)[0] for script in SCRIPTS]
    assert names == ["first", "lora", "two", "servers", "chat", "again"]
