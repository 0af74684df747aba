"""Whole runs: which prompts reach the engine, in which order, and what is said of those that cannot."""

import asyncio
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from run_cases import FAKE_ENGINE, HERE, Run, engine_beside, lengths, make_job, opened, rows, run_config

from asyncgrpo import AsyncGRPOConfig, AsyncGRPOTrainer
from asyncgrpo.cli.main import main
from asyncgrpo.config.loading import from_python
from asyncgrpo.config.render import render_config
from asyncgrpo.errors import DataError
from asyncgrpo.launch import run_job
from asyncgrpo.preflight import prepare
from asyncgrpo.rewards.functions import from_callables
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import GENERATE
from asyncgrpo.testing.tiny import make_tokenizer

TOKENIZER = make_tokenizer()
NO_PROBE = {"probe": False}


async def asked(model: Path, folder: Path, given: Any, **sections: Any) -> list[str]:
    """Prompts of a run as the engine got them, each once, in their order."""
    async with asyncio.timeout(60), FakeEngine(model, script=lengths) as engine:
        config = run_config(model, folder, [engine.url], weights=NO_PROBE, **sections)
        async with opened(make_job(config, data=given)) as orchestrator:
            await orchestrator.run()
        bodies = {call.body["request_id"].split("-")[1]: call.body["token_ids"] for call in engine.calls(GENERATE)}
    return [TOKENIZER.decode(bodies[group]) for group in sorted(bodies, key=int)]


@pytest.mark.parametrize("count", [1, 3])
async def test_a_dataset_smaller_than_a_step_is_gone_through_again(
    tiny_model: Path, tmp_path: Path, count: int
) -> None:
    found = await asked(tiny_model, tmp_path, rows(short=count, long=0), training={"max_steps": 4})
    names = [f"s{row}" for row in range(count)]
    assert len(Run(tmp_path).steps) == 4
    assert found[:16] == list(itertools.islice(itertools.cycle(names), 16))


async def test_the_order_at_the_engine_is_that_of_the_seed(tiny_model: Path, tmp_path: Path) -> None:
    found = {}
    for name, seed, shuffles in (("a", 1, True), ("b", 1, True), ("c", 2, True), ("d", 1, False)):
        (tmp_path / name).mkdir()
        sections: dict[str, Any] = {
            "run": {"seed": seed, "output_dir": str(tmp_path / name / "run")},
            "data": {"shuffle_dataset": shuffles},
            "training": {"max_steps": 2},
        }
        found[name] = (await asked(tiny_model, tmp_path / name, rows(short=20, long=0), **sections))[:8]
    assert found["a"] == found["b"] != found["c"]
    assert found["d"] == [f"s{row}" for row in range(8)]


async def test_a_prompt_beyond_the_limit_reaches_the_engine_with_its_headers(tiny_model: Path, tmp_path: Path) -> None:
    """And one that does not fit in any way does not reach it."""
    header = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n"
    end = "<|im_end|>\n<|im_start|>assistant\n"
    limit = len(TOKENIZER(header + end)["input_ids"]) + 6
    data = [{"prompt": "s" * length + "?", "scale": 1.0} for length in (3, 50)]
    data.append({"prompt": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "s" * 50}], "scale": 1})
    for row in data[:2]:
        row["prompt"] = [{"role": "user", "content": row["prompt"]}]
    found = await asked(
        tiny_model, tmp_path, data, training={"max_steps": 1, "groups_per_step": 2},
        data={"system_prompt": "be brief", "max_prompt_length": limit, "long_prompts": "keep_tail"},
    )  # fmt: skip
    shown = sorted(set(found))
    assert shown == [f"{header}sss?{end}", f"{header}sssss?{end}"]
    record = Run(tmp_path).steps[-1]
    assert (record["prompts_too_long"], record["prompts_shortened"]) == (1, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "a", "answer": 1}', "has no column 'prompt'; it has question, answer"),
        ("", "has no rows"),
        ('{"prompt": null}', "row 0: the prompt is empty (None)"),
        ('{"prompt": ""}', "row 0: the prompt is empty ('')"),
    ],
)
def test_no_request_is_sent_for_data_that_cannot_be_trained_on(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "data.jsonl").write_text(text)
    (tmp_path / "reward.py").write_text("def reward(completions, **_):\n    return [0.0] * len(completions)\n")
    with engine_beside(tiny_model) as engine:
        config = run_config(
            tiny_model, tmp_path, [engine.url], data={"dataset": str(tmp_path / "data.jsonl")}
        )  # fmt: skip
        config = config.model_validate(
            config.model_dump(mode="json") | {"rewards": [{"path": f"{tmp_path / 'reward.py'}:reward"}]}
        )
        (tmp_path / "run.yaml").write_text(render_config(from_python(config, ())))
        assert main(["train", str(tmp_path / "run.yaml")]) == DataError.exit_code
        assert engine.requests == []
    assert message in capsys.readouterr().err


def mixed(folder: Path) -> list[dict[str, Any]]:
    """Three of four prompts are of `many`, of which only one knows `scale`."""
    for name, count, more in (("many", 12, {"scale": 0.01}), ("few", 3, {})):
        lines = [json.dumps({"prompt": f"s{name}{row}", **more}) for row in range(count)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return [{"dataset": str(folder / "many.jsonl"), "weight": 3}, {"dataset": str(folder / "few.jsonl"), "weight": 1}]


def test_a_mix_is_rewarded_and_reported_by_dataset(tiny_model: Path, tmp_path: Path) -> None:
    def by_dataset(completions: list[str], dataset: list[str], scale: list[float | None]) -> list[float]:
        assert {(name, number) for name, number in zip(dataset, scale, strict=True)} <= {("many", 0.01), ("few", None)}
        return [2.0 if name == "many" else -1.0 for name in dataset]

    with engine_beside(tiny_model) as engine:
        (tmp_path / "shm").mkdir()
        args = AsyncGRPOConfig(
            output_dir=str(tmp_path / "run"), vllm_server_base_url=engine.url, vllm_dtype="float32", max_steps=4,
            learner_mode="inline", learner_devices=["cpu"], num_generations=2, groups_per_step=4,
            max_completion_length=8, shared_memory_dir=str(tmp_path / "shm"), dataset_mix=mixed(tmp_path),
        )  # fmt: skip
        AsyncGRPOTrainer(str(tiny_model), by_dataset, args).train()
    total: Counter[str] = Counter()
    for record in Run(tmp_path).steps:
        for name, reward in (("many", 2.0), ("few", -1.0)):
            if groups := record.get(f"dataset_groups/{name}", 0):
                total[name] += groups
                assert record[f"dataset_reward_mean/{name}"] == reward
    assert total == {"many": 12, "few": 4}


def train_in_parts(model: Path, folder: Path, steps: list[int], reward: Any, **sections: Any) -> list[dict[str, Any]]:
    """The trained samples of a synchronous run that ends after each of `steps` and is resumed."""
    folder.mkdir()
    for last in steps:
        with engine_beside(model) as engine:
            config = run_config(
                model, folder, [engine.url], weights=NO_PROBE, checkpoint={"save_steps": 1},
                training={"max_steps": last, "groups_per_step": 2}, buffer={"max_staleness": 0},
                generation={"num_generations": 2, "max_completion_length": 8}, **sections,
            )  # fmt: skip
            job = prepare(config, rewards=from_callables(reward), machine=HERE)
            run_job(job, config_text=render_config(from_python(job.config, ())), engine_module=FAKE_ENGINE)
    return Run(folder).trained


def test_a_resumed_mix_goes_on_where_it_was(tiny_model: Path, tmp_path: Path) -> None:
    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(len(text)) for text in completions]

    data = {"mix": mixed(tmp_path), "shuffle_dataset": True}
    whole, cut = (
        [row["prompt_id"] for row in train_in_parts(tiny_model, tmp_path / name, steps, reward, data=data)]
        for name, steps in (("whole", [6]), ("cut", [2, 4, 6]))
    )
    assert sorted(whole) == sorted(cut)
    assert len(set(whole)) == 12


def test_a_curriculum_retires_what_is_solved_and_a_resume_knows(tiny_model: Path, tmp_path: Path) -> None:
    """Rows 0 and 1 are solved at once, 2 and 3 never, 4 and 5 half of the time."""
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "s{row}", "row": {row}}}\n' for row in range(6)))

    def reward(row: list[int], **_: Any) -> list[float]:
        return [(1.0, 0.0, float(sample % 2))[row[0] // 2] for sample in range(len(row))]

    sections = {
        "data": {"dataset": str(tmp_path / "rows.jsonl")},
        "curriculum": {"kind": "pass_rate", "retire_after": 1, "rest_epochs": 1},
    }
    whole = train_in_parts(tiny_model, tmp_path / "whole", [9], reward, **sections)
    by_step = [sorted({row["prompt_id"] for row in whole if row["step"] == step}) for step in range(1, 10)]
    assert by_step == [
        ["0-0", "0-1"], ["0-2", "0-3"], ["0-4", "0-5"],
        ["1-4", "1-5"], ["2-2", "2-3"], ["2-4", "2-5"],
        ["3-4", "3-5"], ["4-2", "4-3"], ["4-4", "4-5"],
    ]  # fmt: skip
    cut = train_in_parts(tiny_model, tmp_path / "cut", [2, 5, 9], reward, **sections)
    assert [sorted({row["prompt_id"] for row in cut if row["step"] == step}) for step in range(1, 10)] == by_step
    last = Run(tmp_path / "cut").steps[-1]
    assert {name: last[f"curriculum_prompts/{name}"] for name in ("within", "outside", "retired")} == {
        "within": 2,
        "outside": 2,
        "retired": 2,
    }
