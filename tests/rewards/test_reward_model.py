"""Reward models: a tiny random classifier in its own process scores as the same classifier does here."""

import asyncio
import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from reward_scoring import CHAT, COMPLETIONS, TEXTS, prompt
from transformers import (
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from asyncgrpo.config.resolve import Machine
from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import ConfigError, RewardError
from asyncgrpo.rewards import RewardModel, bound, from_callables, from_config, score_group, started
from asyncgrpo.rewards.model import ModelFailed, check_device
from asyncgrpo.testing.tiny import make_tokenizer, quiet

CONTEXT = 64


def made(
    folder: Path, kind: type[Any] = Qwen2ForSequenceClassification, labels: int = 1, template: bool = True
) -> Path:
    tokenizer = make_tokenizer()
    tokenizer.pad_token = None  # as many models have it
    if not template:
        tokenizer.chat_template = None
    config = Qwen2Config(
        vocab_size=272,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        num_labels=labels,
    )
    torch.manual_seed(0)
    model = kind(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("models") / "classifier")


@contextmanager
def running(folder: Path, **settings: Any) -> Iterator[RewardModel]:
    model = RewardModel(str(folder), **settings)
    try:
        yield model
    finally:
        model.stop()


def directly(folder: Path, texts: list[str]) -> list[float]:
    """One text at a time, without padding."""
    with quiet():
        model = Qwen2ForSequenceClassification.from_pretrained(folder).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
    model.config.pad_token_id = tokenizer.eos_token_id
    ids = [tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"] for text in texts]
    with torch.inference_mode():
        return [float(model(input_ids=each).logits[0, 0]) for each in ids]


def rendered(text: str) -> str:
    return f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{text}<|im_end|>\n"


@pytest.mark.parametrize("batch_size", [1, 2, 16])
async def test_scores_are_those_of_the_model_itself(classifier: Path, batch_size: int) -> None:
    section = RewardSection(model=str(classifier), batch_size=batch_size, weight=2.0, timeout=60.0)
    functions = bound(from_config([section]), max_completion_length=8)
    texts = ["a", "bb and more", "ccc"]
    async with asyncio.timeout(120), started(functions, 60.0):
        chat = await score_group(functions, prompt(CHAT), COMPLETIONS, texts)
        plain = await score_group(functions, prompt("say"), COMPLETIONS, texts)
    assert [sample.rewards["classifier"] for sample in chat] == pytest.approx(
        directly(classifier, [rendered(text) for text in texts]), abs=1e-5
    )
    expected = directly(classifier, ["say" + text for text in texts])
    assert [sample.rewards["classifier"] for sample in plain] == pytest.approx(expected, abs=1e-5)
    assert [sample.reward for sample in plain] == pytest.approx([2 * value for value in expected], abs=1e-4)
    assert len({round(value, 3) for value in expected}) == 3


async def test_groups_that_are_scored_at_once_get_their_own_scores_also_beside_one_that_is_given_up(
    classifier: Path,
) -> None:
    with running(classifier, batch_size=3) as model:
        await model.start(60.0)
        calls = [
            asyncio.create_task(model(prompts=["p"] * 4, completions=[f"{n}{'x' * k}" for k in range(4)]))
            for n in range(10)
        ]
        await asyncio.sleep(0)
        calls[3].cancel()
        scores = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert isinstance(scores[3], asyncio.CancelledError)
    for n in (0, 4, 9):
        expected = directly(classifier, [f"p{n}{'x' * k}" for k in range(4)])
        assert scores[n] == pytest.approx(expected, abs=1e-5)


async def test_a_text_that_is_too_long_costs_its_sample_only(classifier: Path) -> None:
    functions = [replace(each, on_error="drop_sample") for each in from_callables(str(classifier), timeout=60.0)]
    async with started(functions, 60.0):
        samples = await score_group(functions, prompt("say"), COMPLETIONS, ["a", "b" * CONTEXT, "c"])
        with pytest.raises(RewardError, match=rf"completion 1 the exception ModelFailed: .* {CONTEXT + 3} tokens"):
            await score_group(
                [replace(functions[0], on_error="stop")], prompt("say"), COMPLETIONS, ["a", "b" * CONTEXT, "c"]
            )
    assert [sample.text for sample in samples] == ["a", "c"]


async def test_a_model_that_counts_positions_from_behind_the_padding_gets_no_more_than_it_has(
    tmp_path: Path,
) -> None:
    """It is told of 64 positions, and can use 62; one text more would end the process, and with it who else waits."""
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=272,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=1,
        num_labels=1,
    )
    with quiet():
        RobertaForSequenceClassification(config).save_pretrained(tmp_path)
        make_tokenizer().save_pretrained(tmp_path)
    with running(tmp_path) as model:
        scores = await asyncio.wait_for(model(prompts=["p"] * 3, completions=["x" * 61, "x" * 62, "x"]), 60)
    assert [type(score) for score in scores] == [float, ModelFailed, float]
    assert str(scores[1]) == "prompt and completion have 63 tokens, more than the model's 62"


async def test_a_model_without_a_chat_template_says_so_of_a_chat(tmp_path: Path) -> None:
    with running(made(tmp_path / "plain", template=False)) as model:
        functions = from_callables(model, timeout=60.0)
        with pytest.raises(RewardError, match="no chat template, and the prompts are chats"):
            await score_group(functions, prompt(CHAT), COMPLETIONS, TEXTS)
        assert len(await score_group(functions, prompt("say"), COMPLETIONS, TEXTS)) == 3  # others are served


async def test_a_process_that_ends_fails_who_waits_and_is_started_anew(classifier: Path) -> None:
    with running(classifier) as model:
        await model.start(60.0)
        [child] = [each for each in psutil.Process().children() if "model_process" in " ".join(each.cmdline())]
        os.kill(child.pid, signal.SIGSTOP)  # it does not answer any more
        call = asyncio.create_task(model(prompts=["p"], completions=["a"]))
        await asyncio.sleep(0.1)
        assert not call.done()
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(Exception, match="its process ended with code -9"):
            await asyncio.wait_for(call, 20)
        scores = await asyncio.wait_for(model(prompts=["p"], completions=["a"]), 60)
    assert scores == pytest.approx(directly(classifier, ["pa"]), abs=1e-5)


async def test_a_process_that_is_killed_as_it_starts_is_named(classifier: Path) -> None:
    with running(classifier) as model:
        before = psutil.Process().children()
        starting = asyncio.create_task(model.start(60.0))
        async with asyncio.timeout(20):
            while not (started := [each for each in psutil.Process().children() if each not in before]):  # noqa: ASYNC110
                await asyncio.sleep(0)
        started[0].kill()
        with pytest.raises(RewardError, match=r"^reward model .*classifier: its process ended with code -9: it said"):
            await asyncio.wait_for(starting, 20)


async def test_what_cannot_be_sent_costs_its_call_only(classifier: Path) -> None:
    with running(classifier) as model:
        with pytest.raises(Exception, match=r"prompt and completion cannot be sent as JSON: .* datetime is not JSON"):
            await asyncio.wait_for(model(prompts=[[{"content": datetime.datetime.now()}]], completions=[[]]), 20)
        scores = await asyncio.wait_for(model(prompts=["p"], completions=["a"]), 60)
    assert scores == pytest.approx(directly(classifier, ["pa"]), abs=1e-5)


@pytest.mark.parametrize("said", ["no JSON", '{"scores": []}'])
async def test_a_process_that_says_nonsense_is_ended_and_who_waits_is_told(
    classifier: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str
) -> None:
    (tmp_path / "nonsense.py").write_text(f"print({said!r}, flush=True)\nimport sys\nsys.stdin.read()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("asyncgrpo.rewards.model.PROGRAM", "nonsense")
    with running(classifier) as model:
        with pytest.raises(RewardError, match="what its process said cannot be read: "):
            await model.start(20.0)
        assert model._process is not None
        assert await asyncio.to_thread(lambda: model._process._process.wait(10)) == -9  # type: ignore[union-attr]


async def test_nothing_of_it_is_left_after_a_run_or_when_the_orchestrator_is_killed(classifier: Path) -> None:
    functions = from_callables(str(classifier))
    async with started(functions, 60.0):
        [child] = [each for each in psutil.Process().children() if "model_process" in " ".join(each.cmdline())]
    assert not child.is_running()
    program = (
        "import asyncio, sys\nfrom asyncgrpo.rewards import RewardModel\n"
        "model = RewardModel(sys.argv[1])\nasyncio.run(model.start(60.0))\n"
        "print(model._process._process.pid, flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(classifier)]
    with subprocess.Popen(  # noqa: ASYNC220
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        line = await asyncio.to_thread(parent.stdout.readline)
        orphan = psutil.Process(int(line))
        parent.kill()
    await asyncio.to_thread(psutil.wait_procs, [orphan], 20)
    assert not orphan.is_running()


async def test_no_reward_model_is_refused_by_its_own_process_too(tmp_path: Path) -> None:
    for name, kind, labels, message in (
        ("headless", Qwen2ForCausalLM, 1, r"it has no score.weight: no trained head that scores"),
        ("three", Qwen2ForSequenceClassification, 3, "it has 3 labels; a reward model has one"),
    ):
        with (
            running(made(tmp_path / name, kind, labels)) as model,
            pytest.raises(RewardError, match=f"reward model .*{name}: {message}"),
        ):
            await model.start(60.0)


def test_what_is_no_reward_model_is_refused_before_the_run(tmp_path: Path) -> None:
    def refusal(config: Any, name: str = "some") -> str:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError) as caught:
            RewardModel(str(folder)).check()
        return str(caught.value)

    assert "there is no config.json that can be read" in refusal(None, "empty")
    assert "its architecture is Qwen2ForCausalLM" in refusal({"architectures": ["Qwen2ForCausalLM"]})
    head = {"architectures": ["Qwen2ForSequenceClassification"]}
    assert "has 2 labels" in refusal(head)
    assert "has 3 labels" in refusal({**head, "id2label": {"0": "a", "1": "b", "2": "c"}})
    RewardModel("org/some-model-on-the-hub").check()


@pytest.mark.parametrize(
    ("device", "message"),
    [("cuda:1", "there is no GPU 1, only 0"), ("cpu:0-2", "there is no core 2, only 0, 1"), ("cuda:0", None)],
)
def test_a_device_that_is_not_there_is_refused(device: str, message: str | None) -> None:
    machine = Machine(cores=(0, 1), gpus=(0,), fast_bf16=False)
    if message is None:
        check_device("rm", device, machine)
        return
    with pytest.raises(ConfigError, match=message):
        check_device("rm", device, machine)
