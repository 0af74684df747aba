"""The trainer: functions of any kind, models and data of any kind, and the model that it leaves."""

import asyncio
import gc
import json
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from run_cases import Run, children, engine_beside, rows

from asyncgrpo import AsyncGRPOConfig, AsyncGRPOTrainer
from asyncgrpo.config.loading import load_config
from asyncgrpo.errors import ConfigError, DataError, RunFolderError
from asyncgrpo.launch import Outcome
from asyncgrpo.testing.fake_engine import FakeEngine


def arguments(folder: Path, engine: FakeEngine, **more: Any) -> AsyncGRPOConfig:
    (folder / "shm").mkdir()
    settings: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "vllm_server_base_url": engine.url,
        "vllm_dtype": "float32",
        "learner_mode": "inline",
        "learner_devices": ["cpu"],
        "num_generations": 2,
        "groups_per_step": 2,
        "max_steps": 2,
        "max_completion_length": 16,
        "learning_rate": 1e-3,
        "shared_memory_dir": str(folder / "shm"),
    }
    return AsyncGRPOConfig(**settings | more)


async def judged(completions: list[str], **_: Any) -> list[float]:
    await asyncio.sleep(0.001)
    return [float(len(text) % 3) for text in completions]


def test_a_path_closures_and_an_async_reward(tiny_model: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    seen: list[str] = []

    def closure(completion_ids: list[list[int]], scale: list[float]) -> list[float]:
        seen.extend(str(factor) for factor in scale)
        return [sum(ids) * factor for ids, factor in zip(completion_ids, scale, strict=True)]

    before = children()
    with engine_beside(tiny_model) as engine:
        trainer = AsyncGRPOTrainer(
            str(tiny_model),
            [closure, lambda completions, **_: [0.5] * len(completions), judged],
            arguments(tmp_path, engine, reward_weights=[1.0, 2.0, 0.0]),
            rows(short=6, long=0),
        )
        outcome = trainer.train()
    assert (outcome.steps, outcome.interrupted) == (2, False)
    assert set(seen) == {"0.01"}
    run = Run(tmp_path)
    assert len(run.steps) == 2
    assert [name for name, _ in run.trained[0]["rewards"]] == ["closure", "reward_2", "judged"]
    for row in run.trained:
        assert row["reward"] == pytest.approx(0.01 * sum(row["token_ids"]) + 1.0)
    assert repr(outcome) == (
        f"<run in {tmp_path / 'run'}: finished after 2 steps, reward {run.steps[-1]['reward_mean']:+.3f} in the last>"
    )
    folder = outcome.folder.model_dir
    trained, original = (AutoModelForCausalLM.from_pretrained(path) for path in (folder, tiny_model))
    pairs = list(zip(trained.parameters(), original.parameters(), strict=True))
    assert any(not torch.equal(new, old) for new, old in pairs)
    assert all(torch.isfinite(new).all() for new, _ in pairs)
    assert AutoTokenizer.from_pretrained(folder).encode("s1") == AutoTokenizer.from_pretrained(tiny_model).encode("s1")
    kept = load_config(tmp_path / "run" / "config.yaml")
    assert kept.config == trainer.job.config
    sources = {line.split(":")[0].strip(): line.split("# ")[-1] for line in reversed(kept_lines(tmp_path))}
    assert (sources["num_generations"], sources["temperature"]) == ("Python", "default")
    assert (sources["path"], sources["rewards"]) == ("Python", "Python")
    last = kept_lines(tmp_path)[-1]
    assert last == '# reward_funcs, given in Python: "closure" x 1, "reward_2" x 2, "judged" x 0'
    assert (tmp_path / "run" / "summary.md").read_text().startswith("# run: 2 steps")
    assert children() == before
    assert list((tmp_path / "shm").iterdir()) == []


def kept_lines(folder: Path) -> list[str]:
    return (folder / "run" / "config.yaml").read_text().splitlines()


def test_data_by_path_epochs_and_a_tokenizer_of_ones_own(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows(short=4, long=0)))
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = "{{ messages[0]['content'] }} my own"
    with engine_beside(tiny_model) as engine:
        args = arguments(tmp_path, engine, max_steps=-1, num_train_epochs=1.5)
        outcome = AsyncGRPOTrainer(str(tiny_model), judged, args, data, tokenizer).train()
    assert outcome.steps == 3  # 1.5 x 4 prompts, 2 per step
    assert AutoTokenizer.from_pretrained(outcome.folder.model_dir).chat_template == tokenizer.chat_template
    lines = [line.split() for line in kept_lines(tmp_path)]
    assert ["max_steps:", "3", "#", "derived"] in lines
    assert ["dataset:", str(data), "#", "Python"] in lines


def test_an_interrupt_inside_a_running_loop_ends_the_run(tiny_model: Path, tmp_path: Path) -> None:
    """As the stop button of a notebook: the run is over, with all that it started, when the cell is."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    scoring = threading.Event()

    async def endless(**_: Any) -> list[float]:
        scoring.set()
        await asyncio.sleep(60)
        return []

    def interrupt() -> None:
        scoring.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    async def cell(trainer: AsyncGRPOTrainer) -> Outcome:
        return trainer.train()

    before = children()
    loop = asyncio.new_event_loop()  # asyncio.run would take the signal for itself
    with engine_beside(tiny_model) as engine:
        model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
        trainer = AsyncGRPOTrainer(
            model, endless, arguments(tmp_path, engine, learner_mode="process"), rows(short=4, long=0), tokenizer
        )
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(cell(trainer))
        interrupter.join()
        loop.close()
        assert children() == before
        assert engine.core.requests == []
    assert list((tmp_path / "shm").iterdir()) == []


def test_a_model_object_and_a_dataset_inside_a_running_loop(tiny_model: Path, tmp_path: Path) -> None:
    """As in a notebook; the model is saved for as long as the trainer lives, which may train again."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with engine_beside(tiny_model) as engine:
        trainer = AsyncGRPOTrainer(
            AutoModelForCausalLM.from_pretrained(tiny_model),
            judged,
            arguments(tmp_path, engine, max_staleness=0),
            Dataset.from_list(rows(short=2, long=0)),
            AutoTokenizer.from_pretrained(tiny_model),
        )
        saved = trainer.job.config.model.path
        assert os.path.isfile(f"{saved}/model.safetensors")

        async def cell(trainer: AsyncGRPOTrainer) -> Outcome:
            return trainer.train()

        outcome = asyncio.run(cell(trainer))
    assert outcome.steps == 2
    assert os.path.isfile(f"{saved}/model.safetensors")
    del trainer
    gc.collect()
    assert not os.path.exists(saved)
    assert {row["staleness_max"] for row in Run(tmp_path).trained} == {0}


async def test_errors_of_the_run_reach_the_caller(tiny_model: Path, tmp_path: Path) -> None:
    def broken(**_: Any) -> list[float]:
        raise ZeroDivisionError("oops")

    with engine_beside(tiny_model) as engine:
        trainer = AsyncGRPOTrainer(str(tiny_model), broken, arguments(tmp_path, engine), rows(short=2, long=0))
        with pytest.raises(Exception, match=r"reward function 'broken', prompt \d-\d: ZeroDivisionError: oops"):
            trainer.train()
    assert list((tmp_path / "shm").iterdir()) == []


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(tiny_model) as engine:
        yield engine


async def test_what_is_wrong_is_said_before_anything_loads(
    engine: FakeEngine, tiny_model: Path, tmp_path: Path
) -> None:
    args, data = arguments(tmp_path, engine), rows()
    with pytest.raises(ConfigError, match=r"unknown.*'learning_rat'.*did you mean learning_rate"):
        AsyncGRPOConfig(learning_rat=1.0)
    with pytest.raises(ConfigError, match=r"per_device_train_batch_size.*groups_per_step"):
        AsyncGRPOConfig(per_device_train_batch_size=4)
    with pytest.raises(ConfigError, match="expected a path, a hub name or a transformers model, not int"):
        AsyncGRPOTrainer(3, judged, args, data)
    with pytest.raises(ConfigError, match="/nowhere does not exist"):
        AsyncGRPOTrainer("/nowhere", judged, args, data)
    with pytest.raises(ConfigError, match="reward_funcs is empty"):
        AsyncGRPOTrainer(str(tiny_model), [], args, data)
    with pytest.raises(ConfigError, match=r"needs 'answer'.*no column"):
        AsyncGRPOTrainer(str(tiny_model), lambda completions, answer: [0.0], args, data)
    with pytest.raises(ConfigError, match="train_dataset is missing: give a"):
        AsyncGRPOTrainer(str(tiny_model), judged, args)
    with pytest.raises(DataError, match=r"gone\.jsonl"):
        AsyncGRPOTrainer(str(tiny_model), judged, args, "gone.jsonl")
    with pytest.raises(DataError, match="prompt"):
        AsyncGRPOTrainer(str(tiny_model), judged, args, [{"question": "1+1"}])
    (tmp_path / "run" / "x").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"exists; choose another output_dir"):
        AsyncGRPOTrainer(str(tiny_model), judged, args, data)
    assert engine.requests == []


async def test_a_model_object_needs_its_tokenizer(engine: FakeEngine, tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with pytest.raises(ConfigError, match="its tokenizer must be given as processing_class"):
        AsyncGRPOTrainer(model, judged, arguments(tmp_path, engine), rows())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"peft_config": object()}, "peft_config is given: set lora_r, lora_alpha and lora_target_modules"),
        ({"callbacks": []}, "callbacks is given: this version does not have it"),
        ({"eval_dataset": {"a": [], "b": []}}, r"eval_dataset is a dict; .*give one of 'a', 'b'"),
        ({"reward_processing_classes": object()}, "reward_processing_classes is given: .*tokenizer of its own folder"),
        ({"optimizers": (object(), None)}, "optimizers is given: .*AdamW"),
        ({"tools": [print]}, "tool 'print': its description for the model cannot be made"),
        ({"rollout_func": print}, "rollout_func is given"),
        ({"reward_func": print}, "unknown argument 'reward_func'; did you mean reward_funcs"),
        ({"args": {"max_steps": 1}}, "args: expected an AsyncGRPOConfig, not dict"),
        ({"train_dataset": {"train": [], "test": []}}, r"give one split, as in dataset\['train'\] .*'train', 'test'"),
    ],
)
def test_arguments_of_trl_that_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AsyncGRPOTrainer(**{"model": "m", "reward_funcs": judged, "train_dataset": [{"prompt": "a"}], **more})


@pytest.fixture
def idle(tiny_model: Path, tmp_path: Path) -> AsyncGRPOTrainer:
    """A trainer that could train."""
    args = AsyncGRPOConfig(output_dir=str(tmp_path / "run"), vllm_devices=["cpu:0"], learner_devices=["cpu"])
    return AsyncGRPOTrainer(str(tiny_model), judged, args, rows(short=8, long=0))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("save_model", "the model lies in final_model/ below output_dir, saved by train()"),
        ("model", r"AutoModelForCausalLM.from_pretrained\(outcome.folder.model_dir\)"),
        ("state", "every step is a line of metrics.jsonl"),
        ("evaluate", "give eval_dataset, .*`asyncgrpo evaluate MODEL CONFIG.yaml`"),
        ("modle", "AsyncGRPOTrainer has no attribute 'modle'$"),
    ],
)
def test_attributes_of_trl_say_what_there_is_instead(idle: AsyncGRPOTrainer, name: str, says: str) -> None:
    assert not hasattr(idle, name)
    with pytest.raises(AttributeError, match=says):
        getattr(idle, name)


def test_resuming_is_refused(idle: AsyncGRPOTrainer) -> None:
    with pytest.raises(RunFolderError, match=r"resume_from_checkpoint=True, but output_dir=.* has no checkpoint; name"):
        idle.train(resume_from_checkpoint=True)
    with pytest.raises(ConfigError, match=r"resume_from_checkpoint='runs/x': give True, and the run's folder"):
        idle.train(resume_from_checkpoint="runs/x")
    checkpoint = Path(idle.args.output_dir) / "checkpoints" / "step-00000002"
    checkpoint.mkdir(parents=True)
    with pytest.raises(RunFolderError, match="exists; choose another output_dir"):
        idle.train(resume_from_checkpoint=False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"train_dataset": [{"question": "1"}]},
            "it has question. Set prompt_column, dataset_columns or prompt_template$",
        ),
        ({"reward_funcs": []}, "reward_funcs is empty: give a function"),
        ({"model": "/nowhere"}, "^model=/nowhere does not exist"),
        ({"train_dataset": "/no.jsonl"}, "^train_dataset=/no.jsonl: no such file"),
    ],
)
def test_errors_name_settings_as_python_does(
    tiny_model: Path, tmp_path: Path, arguments: dict[str, Any], says: str
) -> None:
    args = AsyncGRPOConfig(output_dir=str(tmp_path / "run"), vllm_devices=["cpu:0"], learner_devices=["cpu"])
    given = {"model": str(tiny_model), "reward_funcs": judged, "args": args, "train_dataset": [{"prompt": "a"}]}
    with pytest.raises((ConfigError, DataError), match=says):
        AsyncGRPOTrainer(**{**given, **arguments})


def test_arguments_of_trl_that_are_not_used_may_be_none(tiny_model: Path, tmp_path: Path) -> None:
    args = AsyncGRPOConfig(output_dir=str(tmp_path / "run"), vllm_devices=["cpu:0"], learner_devices=["cpu"])
    trainer = AsyncGRPOTrainer(
        str(tiny_model), judged, args, rows(short=8, long=0), peft_config=None, optimizers=(None, None)
    )
    assert len(trainer.job.rewards) == 1
