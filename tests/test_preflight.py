"""Every bad input is one clear error before any model loads."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from run_cases import HERE, make_job, opened, run_config

from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import load_config
from asyncgrpo.errors import AsyncGRPOError, ConfigError, DataError, EngineUnavailable, RunFolderError
from asyncgrpo.preflight import check_model_path, model_setting, prepare, total_steps, within_context
from asyncgrpo.testing.fake_engine import FakeEngine

REWARDS = "def correct(completions, answer):\n    return [float(a in c) for a, c in zip(answer, completions)]\n"


@pytest.fixture
def files(tiny_model: Path, tmp_path: Path) -> Path:
    """A folder with a configuration that passes."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "answer": "3"}\n')
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    sections = {
        "run": {"output_dir": str(tmp_path / "run")},
        "model": {"path": str(tiny_model)},
        "data": {"dataset": str(tmp_path / "rows.jsonl")},
        "rewards": [{"path": f"{tmp_path / 'my_rewards.py'}:correct"}],
        "engines": {"urls": ["http://127.0.0.1:9"], "dtype": "float32"},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(sections))  # JSON is YAML
    return tmp_path


def check(folder: Path, *overrides: str) -> None:
    """What `asyncgrpo train` does before it starts anything."""
    prepare(load_config(folder / "run.yaml", overrides).config, machine=HERE)


def test_a_good_configuration_passes_and_leaves_nothing(files: Path) -> None:
    before = sorted(files.iterdir())
    check(files)
    assert sorted(path for path in files.iterdir() if path.name != "__pycache__") == before


def test_built_in_rewards_know_the_run(files: Path) -> None:
    rewards = "--rewards=[{path: soft_overlong, arguments: {soft_punish_cache: 10}}, {path: accuracy, timeout: 10, "
    rewards += "arguments: {answer_column: answer}}]"
    overrides = [rewards, "--generation.max_completion_length=40"]
    length, accuracy = prepare(load_config(files / "run.yaml", overrides).config, machine=HERE).rewards
    assert length.call(completion_ids=[[1] * 35]) == [-0.5]
    assert (accuracy.name, getattr(accuracy.call, "call_timeout", None)) == ("accuracy", 8.0)


BAD: list[tuple[str, type[AsyncGRPOError], str]] = [
    ("--data.prompt_column=question", DataError, r"question.*(answer|prompt)"),
    ("--data.dataset=FOLDER/empty.jsonl", DataError, "no rows|empty"),
    ("--data.dataset=FOLDER/gone.jsonl", DataError, "gone.jsonl"),
    ("--data.dataset=", ConfigError, "data.dataset is not set: name a"),
    ("--data.max_prompt_length=1", DataError, r"all 2 prompts are longer than 1 tokens.*data.max_prompt_length"),
    ("--training.learning_rat=1", ConfigError, "did you mean training.learning_rate"),
    ("--training.learning_rate=fast", ConfigError, 'training.learning_rate = "fast".*expected a number'),
    ("--training.lr_scheduler_type=cosnie", ConfigError, "training.lr_scheduler_type.*cosnie.*cosine"),
    ("--rewards=[{path: acuracy}]", ConfigError, "reward 'acuracy': expected .*; did you mean accuracy"),
    ("--rewards=[{path: accuracy}]", ConfigError, "'accuracy' needs 'solution', .*; its other columns are: answer"),
    ("--rewards=[{path: repetition, arguments: {ngram_size: 0}}]", ConfigError, "ngram_size = 0: expected more than 0"),
    (
        "--rewards=[{path: soft_overlong, arguments: {soft_punish_cache: 300}}]",
        ConfigError,
        "soft_punish_cache=300 is more than max_completion_length=256",
    ),
    ("--generation.num_generations=1", ConfigError, "generation.num_generations"),
    ("--generation.temperature=3", ConfigError, "generation.temperature"),
    ("--training.num_minibatches=3", ConfigError, r"groups_per_step=8 does not divide .*valid: \[1, 2, 4, 8\]"),
    ("--buffer.max_unfinished_groups=2", ConfigError, "cannot hold one step"),
    ("--engines.max_model_len=100", ConfigError, "engines.max_model_len=100 is shorter"),
    ("--training.max_steps=0", ConfigError, "training.max_steps=0: give a positive number"),
    ("--generation.top_p=0.9", ConfigError, "generation.top_p=0.9 samples from a truncated distribution"),
    ("--model.path=/nowhere/model", ConfigError, "model.path=/nowhere/model does not exist"),
    ("--model.path=", ConfigError, "model.path is not set"),
    ("--model.path=FOLDER", ConfigError, "has no config.json"),
    ("--learner.devices=[cuda:7]", ConfigError, r"learner.devices: 'cuda:7' names \[7\]"),
    ("--learner.devices=[]", ConfigError, "learner.devices is empty: name at least one"),
    ("--learner.devices=['cuda:0,1']", ConfigError, "learner.devices: 'cuda:0,1' is not one device"),
    ("--engines.devices=[cpu:1-0]", ConfigError, "engines.devices: 'cpu:1-0' ends before it begins"),
    ("--engines.devices=[tpu]", ConfigError, "engines.devices: 'tpu' is not a device"),
    ("--engines.urls=[localhost:8000]", ConfigError, "engines.urls: 'localhost:8000' is not a URL; write http"),
    ("--engines.urls=['http://a:x']", ConfigError, "engines.urls: 'http://a:x' is not a URL; write http"),
    ("--engines.urls=[] --engines.devices=[]", ConfigError, "engines.devices is empty: name at least one"),
    ("--engines.port=65535 --engines.devices=[cpu,cpu]", ConfigError, "port=65535 is too high: .* 2 engines .* 65536"),
    ("--training.adam_beta1=1.5", ConfigError, "training.adam_beta1 = 1.5.*expected less than 1"),
    ("--training.adam_beta2=-0.1", ConfigError, "training.adam_beta2 = -0.1.*expected at least 0"),
    ("--model.path=./gone", ConfigError, "model.path=./gone does not exist"),
    ("--model.path=~/gone/model", ConfigError, "model.path=~/gone/model does not exist"),
    ("--rewards=[]", ConfigError, "no reward function"),
    ("--rewards=[{path: 'FOLDER/gone.py:f'}]", ConfigError, "gone.py"),
    ("--run.output_dir=FOLDER", RunFolderError, "exists; choose another run.output_dir or remove it"),
    (
        "--run.plan_from=FOLDER/gone",
        ConfigError,
        "run.plan_from=.*/gone is no folder of a run: it has no metrics.jsonl",
    ),
    ("--run.plan_from=FOLDER/bare", ConfigError, "run.plan_from=.*/bare has no rollouts; .*save_rollouts=true"),
    ("--observe.metrics_port=PORT", ConfigError, "observe.metrics_port=.*cannot listen"),
]


@pytest.mark.parametrize(("override", "kind", "message"), BAD, ids=[override for override, _, _ in BAD])
def test_bad_input_is_refused(files: Path, override: str, kind: type[AsyncGRPOError], message: str) -> None:
    (files / "empty.jsonl").touch()
    (files / "bare").mkdir()
    (files / "bare" / "metrics.jsonl").write_text('{"step": 1}\n')
    with socket.create_server(("127.0.0.1", 0)) as server:
        override = override.replace("FOLDER", str(files)).replace("PORT", str(server.getsockname()[1]))
        with pytest.raises(AsyncGRPOError, match=message) as caught:
            check(files, *override.split(" --"))
    assert type(caught.value) is kind
    assert caught.value.exit_code == 2
    assert not (files / "run").exists()


def test_a_managed_engines_port_that_is_taken_is_refused(files: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"engines.port: port {port} is taken"):
            check(files, "--engines.urls=[]", "--engines.devices=[cpu]", f"--engines.port={port}")


def test_without_vllm_managed_engines_are_refused(files: Path) -> None:
    """In a process of its own, where importing vllm finds nothing."""
    script = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "class WithoutVllm(PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        return None if name == 'vllm' else super().find_spec(name, path, target)\n"
        "sys.meta_path[:] = [WithoutVllm if finder is PathFinder else finder for finder in sys.meta_path]\n"
        "from asyncgrpo.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", script, "train", str(files / "run.yaml"), "--engines.urls=[]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith('error: vLLM is not installed: pip install "asyncgrpo[vllm]"')
    assert "engines.urls" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("--data.prompt_column=question", 2, "question"),
        ("--training.learning_rat=1", 2, "did you mean"),
        ("--generation.num_generations=1", 2, "generation.num_generations"),
    ],
)
def test_the_command_line_says_it_in_one_line(files: Path, override: str, code: int, message: str) -> None:
    command = [sys.executable, "-m", "asyncgrpo.cli.main", "train", str(files / "run.yaml"), override]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert message in done.stderr
    assert [line.startswith("error: ") for line in done.stderr.splitlines()] == [True]


async def test_an_external_engine_that_is_not_there_is_named_before_the_model_loads(
    tiny_model: Path, tmp_path: Path
) -> None:
    config = run_config(tiny_model, tmp_path, ["http://127.0.0.1:9"], learner={"mode": "process"})
    async with asyncio.timeout(10):
        with pytest.raises(EngineUnavailable, match=r"engine-0 cannot be reached at http://127\.0\.0\.1:9"):
            async with opened(make_job(config)):
                pass
    assert os.listdir(tmp_path / "run" / "logs") == []


@pytest.fixture
async def raw_engine(tiny_model: Path) -> AsyncIterator[FakeEngine]:
    settings: dict[str, Any] = {"raw_logprobs": True, "max_model_len": 64, "transfer_backend": "nccl"}
    async with asyncio.timeout(60), FakeEngine(tiny_model, **settings) as engine:
        yield engine


async def test_an_external_engine_with_other_settings_is_refused(
    raw_engine: FakeEngine, tiny_model: Path, tmp_path: Path
) -> None:
    """Every wrong setting at once, each with the flag that sets it; nothing has been published by then."""
    config = run_config(tiny_model, tmp_path, [raw_engine.url], engines={"dtype": "bfloat16"})
    with pytest.raises(ConfigError) as caught:
        async with opened(make_job(config)):
            pass
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    for line, flag in zip(lines, ("--logprobs-mode raw_logprobs", "--dtype float32", "nccl", "64"), strict=True):
        assert line.startswith(f"engine engine-0 at {raw_engine.url} runs with --")
        assert flag in line
    assert raw_engine.calls("/pause") == []
    assert list((tmp_path / "shm").iterdir()) == []


@pytest.mark.parametrize(
    ("training", "prompts", "steps"),
    [
        ({"max_steps": 7}, 3, 7),
        ({"groups_per_step": 8}, 16, 2),
        ({"groups_per_step": 8}, 17, 3),
        ({"groups_per_step": 8, "num_train_epochs": 2.5}, 16, 5),
        ({"groups_per_step": 8, "num_train_epochs": 0.1}, 3, 1),
    ],
)
def test_total_steps(training: dict[str, Any], prompts: int, steps: int, tmp_path: Path) -> None:
    base = {"max_steps": -1}
    assert total_steps(run_config(tmp_path, tmp_path, training=base | training), prompts) == steps


def test_epochs_become_steps_that_a_schedule_can_use(tiny_model: Path, tmp_path: Path) -> None:
    config = run_config(
        tiny_model, tmp_path, ["http://127.0.0.1:9"], training={"max_steps": -1, "lr_scheduler_type": "cosine"}
    )
    job = make_job(config)
    assert job.total_steps == job.config.training.max_steps == 2


def test_a_warm_up_that_the_epochs_end_in_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    """How long the run is, only the data set tells."""
    training = {"max_steps": -1, "lr_scheduler_type": "cosine", "warmup_steps": 2}
    config = run_config(tiny_model, tmp_path, ["http://127.0.0.1:9"], training=training)
    with pytest.raises(ConfigError, match=r"^training.warmup_steps=2 counts .* the run has 2 \(training.max_steps=2 x"):
        make_job(config)


def test_a_hub_name_is_the_learners_to_find() -> None:
    check_model_path("organisation/model")
    check_model_path("gpt2")


def test_a_completion_longer_than_the_context_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="may have 10001 tokens, but the model's context is 512; lower"):
        within_context(context_config(tiny_model, max_completion_length=10_000))


def test_prompts_get_what_completions_leave_of_the_context(tiny_model: Path) -> None:
    assert within_context(context_config(tiny_model, max_completion_length=12)).data.max_prompt_length == 500


def context_config(folder: Path, max_completion_length: int) -> RunConfig:
    sections = {"model": {"path": str(folder)}, "generation": {"max_completion_length": max_completion_length}}
    return RunConfig.model_validate(sections)


def test_vocabulary_comes_from_the_models_configuration(tiny_model: Path) -> None:
    config = context_config(tiny_model, max_completion_length=12)
    assert model_setting(config, "vocab_size") == 272
    assert model_setting(config, "no_such_setting") is None
