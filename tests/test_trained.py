"""What comes out of a run: merged, generated from, talked to, and its card."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from peft import AutoPeftModelForCausalLM, PeftModel
from run_cases import FAKE_ENGINE, make_job, mean_token, run_config
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncgrpo import AsyncGRPOConfig, AsyncGRPOTrainer
from asyncgrpo.cli.chat import talk
from asyncgrpo.cli.main import main
from asyncgrpo.config.adapter import is_adapter
from asyncgrpo.config.loading import from_python
from asyncgrpo.config.render import render_config
from asyncgrpo.errors import CheckpointError, ConfigError, DataError, LearnerError, RunFolderError
from asyncgrpo.launch import run_job
from asyncgrpo.learning.answering import complete
from asyncgrpo.observe.model_card import write_model_card
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.trained import appearing, find

LORA = {"lora_r": 4, "lora_modules_to_save": ["norm"]}


def trained_run(model: Path, folder: Path, rows: list[dict[str, Any]], **sections: Any) -> RunFolder:
    """Two steps, a checkpoint after each."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = run_config(
        model,
        folder,
        generation={"num_generations": 4, "max_completion_length": 12, "request_timeout": 20.0},
        training={"max_steps": 2, "groups_per_step": 2, "learning_rate": 1e-2},
        checkpoint={"save_steps": 1, "save_total_limit": None},
        data={"dataset": str(folder / "rows.jsonl"), "shuffle_dataset": False},
        **sections,
    )
    job = make_job(config, data=rows)
    return run_job(job, config_text=render_config(from_python(job.config, ())), engine_module=FAKE_ENGINE).folder


TEXTS = [{"prompt": f"s{i}", "scale": 0.01} for i in range(4)]
CHATS = [{"prompt": [{"role": "user", "content": f"s{i}"}], "scale": 0.01} for i in range(4)]


@pytest.fixture(scope="module")
def adapted(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained_run(tiny_model, tmp_path_factory.mktemp("adapted"), CHATS, lora=LORA, objective={"beta": 0.01})


@pytest.fixture(scope="module")
def whole(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained_run(tiny_model, tmp_path_factory.mktemp("whole"), TEXTS)


@torch.no_grad()
def logits(model: torch.nn.Module | Path) -> torch.Tensor:
    """Weights are float32, products float64: what differs is the weights, not the order in which they are summed."""
    model = AutoModelForCausalLM.from_pretrained(model) if isinstance(model, Path) else model
    return model.double().eval()(input_ids=torch.arange(1, 12)[None]).logits


@torch.no_grad()
def float32_logits(model: torch.nn.Module) -> torch.Tensor:
    return model.float().eval()(input_ids=torch.arange(1, 12)[None]).logits


def adapter_of_checkpoint(run: RunFolder, step: int, base: Path, folder: Path) -> PeftModel:
    """By peft alone, from what is in the checkpoint."""
    learner = run.checkpoints_dir / f"step-{step:08d}" / "learner"
    adapter = run.model_dir / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text((adapter / "adapter_config.json").read_text())
    names = {
        f"base_model.model.{name.replace('.modules_to_save.default', '').replace('.default', '')}": tensor
        for name, tensor in load_file(learner / "weights.safetensors").items()
    }
    assert names.keys() == load_file(adapter / "adapter_model.safetensors").keys()
    save_file(names, folder / "adapter_model.safetensors")
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)


def test_merged_is_the_adapter_model_to_1e_5(adapted: RunFolder, tiny_model: Path, tmp_path: Path) -> None:
    assert main(["merge", str(adapted.path), "--out", str(tmp_path / "m")]) == 0
    peft_model = AutoPeftModelForCausalLM.from_pretrained(adapted.model_dir / "adapter")
    in_float32 = float32_logits(peft_model)
    merged = float32_logits(AutoModelForCausalLM.from_pretrained(tmp_path / "m"))
    assert (merged - in_float32).abs().max() <= 1e-5 * in_float32.abs().max()
    expected = logits(peft_model)
    torch.testing.assert_close(logits(tmp_path / "m"), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(logits(adapted.model_dir), expected, rtol=0, atol=1e-5)
    assert (expected - logits(tiny_model)).abs().max() > 0.05
    assert AutoTokenizer.from_pretrained(tmp_path / "m").encode("s1") == AutoTokenizer.from_pretrained(
        tiny_model
    ).encode("s1")


def test_a_checkpoint_merged_is_its_adapter_model_to_1e_5(
    adapted: RunFolder, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m"
    assert main(["merge", str(adapted.path), "--step", "1", f"--out={out}"]) == 0
    assert "checkpoint of step 1: merged in float32 into " in capsys.readouterr().out
    expected = logits(adapter_of_checkpoint(adapted, 1, tiny_model, tmp_path / "a"))
    torch.testing.assert_close(logits(out), expected, rtol=0, atol=1e-5)
    assert (expected - logits(adapted.model_dir)).abs().max() > 0.01
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "m"]


def test_a_checkpoint_of_all_weights_is_exported(whole: RunFolder, tmp_path: Path) -> None:
    assert main(["merge", str(whole.path), "--step=1", f"--out={tmp_path / 'one'}"]) == 0
    assert main(["merge", str(whole.path), "--step=2", f"--out={tmp_path / 'two'}"]) == 0
    two, final = (load_file(folder / "model.safetensors") for folder in (tmp_path / "two", whole.model_dir))
    assert two.keys() == final.keys()
    assert all(torch.equal(two[name], final[name]) for name in final)
    assert (logits(tmp_path / "one") - logits(tmp_path / "two")).abs().max() > 0.01


def test_the_type_of_the_merged_weights(adapted: RunFolder, tmp_path: Path) -> None:
    assert main(["merge", str(adapted.path), "--dtype", "bfloat16", f"--out={tmp_path / 'm'}"]) == 0
    narrow, wide = (load_file(folder / "model.safetensors") for folder in (tmp_path / "m", adapted.model_dir))
    assert all(torch.equal(narrow[name], wide[name].bfloat16()) for name in wide)
    assert json.loads((tmp_path / "m" / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_run_without_a_final_model_gives_its_newest_checkpoint(whole: RunFolder, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    cut.mkdir()
    for name in ("config.yaml", "checkpoints", "rollouts"):
        os.symlink(whole.path / name, cut / name)
    found = find(str(cut))
    assert (found.name, found.step, found.is_chat) == (f"{cut}, checkpoint of step 2", 2, False)
    torch.testing.assert_close(logits(found.load()), logits(whole.model_dir), rtol=0, atol=1e-5)


def test_what_cannot_be_merged(adapted: RunFolder, tmp_path: Path) -> None:
    for source, step, error, message in (
        (adapted.path.with_name("rum"), None, ConfigError, r"rum does not exist"),
        (adapted.path, 7, CheckpointError, r"has no checkpoint of step 7; checkpoints here: 2, 1"),
        (tmp_path, None, ConfigError, r"is neither a run folder \(no config.yaml\) nor a model's"),
        (tmp_path / "no", None, ConfigError, "does not exist; name a run folder"),
        (adapted.model_dir, 1, ConfigError, "--step=1 is a checkpoint of a run, and .* is no run folder"),
    ):
        with pytest.raises(error, match=message):
            find(str(source), step)


def test_a_mistyped_folder_is_not_looked_for_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError, match=r"^runs/uper does not exist, though runs does; name a folder that is there$"):
        find("runs/uper")


def test_another_base_model_under_a_checkpoint_is_refused(
    adapted: RunFolder, tmp_path: Path, make_other_model: Path
) -> None:
    with pytest.raises(LearnerError, match="holds adapters for another model than"):
        find(str(adapted.path), 1, [f"--model.path={make_other_model}"]).load()


@pytest.fixture
def make_other_model(tmp_path: Path) -> Path:
    from asyncgrpo.testing.tiny import make_tiny_model

    return make_tiny_model(tmp_path / "other", seed=3)


@pytest.mark.filterwarnings("ignore:The PEFT config")
def test_another_base_model_under_a_final_adapter_is_refused(
    adapted: RunFolder, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    state = load_file(other / "model.safetensors")
    save_file({name: tensor + 0.01 for name, tensor in state.items()}, other / "model.safetensors", {"format": "pt"})
    out = tmp_path / "merged"
    assert main(["merge", str(adapted.path), "--out", str(out), f"--model.path={other}"]) != 0
    assert "was trained on other weights than model.path=" in capsys.readouterr().err
    assert not out.exists()


def test_a_damaged_rollout_file_is_not_needed(whole: RunFolder, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(whole.path, run.path)
    (run.rollouts_dir / "step_000001.parquet").write_bytes(b"garbage")
    assert find(str(run.path)).is_chat is False


def test_of_a_run_that_goes_on_the_newest_checkpoint_is_taken(whole: RunFolder, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(whole.path, run.path)
    assert find(str(run.path)).name.endswith("final model")
    (run.path / "summary.json").write_text(json.dumps({"steps": 1}))
    assert find(str(run.path)).name.endswith("checkpoint of step 2")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), appearing(tmp_path / "m") as draft:
        (draft / "half").write_text("x")
        assert not (tmp_path / "m").exists()
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".m.999999999.draft").mkdir()  # a kill left it
    with appearing(tmp_path / "m") as draft:
        assert [path.name for path in tmp_path.iterdir()] == [draft.name]
    (tmp_path / "m").rmdir()
    with appearing(tmp_path / "deep" / "m") as draft:
        (draft / "all").write_text("x")
    assert (tmp_path / "deep" / "m" / "all").read_text() == "x"
    with pytest.raises(RunFolderError, match=r"m exists; name another with --out"), appearing(tmp_path / "deep" / "m"):
        pass


def test_a_run_goes_on_training_an_adapter(adapted: RunFolder, tiny_model: Path, tmp_path: Path) -> None:
    start = adapted.model_dir / "adapter"
    run = trained_run(start, tmp_path, CHATS, objective={"beta": 0.01})
    assert find(str(run.path), 1).config.model.path == str(tiny_model)
    first, second = (json.loads(line) for line in run.metrics_file.read_text().splitlines())
    assert first["policy_kl_nats/current_reference"] == 0.0
    assert second["policy_kl_nats/current_reference"] > 0.0
    assert main(["merge", str(run.path), "--step=1", f"--out={tmp_path / 'm'}"]) == 0
    begun, one, two = (logits(folder) for folder in (adapted.model_dir, tmp_path / "m", run.model_dir))
    assert (one - begun).abs().max() > 0.01
    assert (two - one).abs().max() > 0.01
    expected = logits(adapter_of_checkpoint(run, 1, tiny_model, tmp_path / "a"))
    torch.testing.assert_close(one, expected, rtol=0, atol=1e-5)


def test_a_peft_model_may_be_given_to_the_trainer(adapted: RunFolder, tiny_model: Path, tmp_path: Path) -> None:
    peft_model = AutoPeftModelForCausalLM.from_pretrained(adapted.model_dir / "adapter")
    trainer = AsyncGRPOTrainer(
        model=peft_model,
        reward_funcs=mean_token,
        args=AsyncGRPOConfig(output_dir=str(tmp_path / "run"), max_steps=1, max_completion_length=8),
        train_dataset=TEXTS,
        processing_class=AutoTokenizer.from_pretrained(tiny_model),
    )
    config = trainer.job.config
    assert (config.model.path, config.lora.lora_r) == (str(tiny_model), 4)
    assert is_adapter(config.lora.lora_adapter or "")


def test_the_adapter_alone_can_be_merged(adapted: RunFolder, tmp_path: Path) -> None:
    adapter = adapted.model_dir / "adapter"
    assert main(["merge", str(adapter), f"--out={tmp_path / 'm'}"]) == 0
    torch.testing.assert_close(logits(tmp_path / "m"), logits(adapted.model_dir), rtol=0, atol=1e-5)


def test_generate_prints_the_rows_of_the_run(adapted: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", str(adapted.path), "--rows=2", "--n", "3", "--json"]
    assert main([*argv, "--data.system_prompt=Be kind."]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["prompt"] for line in lines] == [
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": f"s{i}"}] for i in range(2)
    ]
    assert [len(line["completions"]) for line in lines] == [3, 3]
    assert len({text for line in lines for text in line["completions"]}) > 1
    assert main(["generate", str(adapted.path), "--rows=1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{adapted.path}, final model\n\nuser: s0\n> ")


def test_a_prompt_is_put_as_it_was_trained(
    adapted: RunFolder, whole: RunFolder, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source, expected in ((adapted.path, [{"role": "user", "content": "s7"}]), (whole.path, "s7")):
        assert main(["generate", str(source), "--prompt", "s7", "--step=1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["prompt"] == expected
    assert main(["generate", str(tiny_model), str(whole.config_file), "--rows=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "s0"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--step", "-1"], "argument --step: '-1' is no whole number of at least 1"),
        (["--prompt", "half \udcff"], "error: prompt 1: the prompt is no text that UTF-8 can hold"),
        (["--prompt", "long " * 500], "tokens and the model room for"),
    ],
)
def test_what_cannot_be_generated(
    whole: RunFolder, words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert main(["generate", str(whole.path), *words]) == DataError.exit_code
    except SystemExit as end:  # argparse's way
        assert end.code == 2
    assert error in capsys.readouterr().err


TOOL = '''
def add(a: int, b: int) -> int:
    """Sum.

    Args:
        a: One.
        b: The other.
    """
    return a + b
'''


def test_prompts_show_the_tools_that_the_run_was_trained_with(adapted: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOL)
    overrides = [f"--environment.tools=[{{path: '{tmp_path / 'tools.py'}:add'}}]"]
    shown = find(str(adapted.path), overrides=overrides).as_prompted()
    (tool,) = shown.data.chat_template_kwargs["tools"]
    assert tool["function"]["name"] == "add"


def test_rows_are_as_long_as_the_run_takes_them(
    whole: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    length = len(find(str(whole.path)).tokenizer()("s0")["input_ids"])
    (tmp_path / "rows.jsonl").write_text('{"prompt": "s0"}\n{"prompt": "longer"}\n')
    argv = ["generate", str(whole.path), f"--data.dataset={tmp_path / 'rows.jsonl'}", "--json"]
    assert main([*argv, f"--data.max_prompt_length={length}"]) == 0
    said = capsys.readouterr()
    assert [json.loads(line)["prompt"] for line in said.out.splitlines()] == ["s0"]
    assert f"prompt 2 is left out: 6 tokens, data.max_prompt_length is {length}" in said.err
    assert main([*argv, f"--data.max_prompt_length={length}", "--data.long_prompts=keep_tail"]) == 0
    assert [json.loads(line)["prompt"] for line in capsys.readouterr().out.splitlines()] == ["s0", "er"]


def test_completions_are_of_the_models_distribution(whole: RunFolder) -> None:
    trained = find(str(whole.path), overrides=["--generation.temperature=0.01", "--generation.max_completion_length=5"])
    model, tokenizer = trained.load(), trained.tokenizer()
    prompt = tokenizer("s1")["input_ids"]
    for tokens in complete(model, tokenizer, prompt, trained.config, 2):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        below_best = logits.max(dim=-1).values - logits[range(len(tokens)), tokens]
        assert below_best.max() < 0.2, "at this temperature any other has less than e^-20 of its probability"


def test_chat_remembers_and_ends_cleanly(adapted: RunFolder) -> None:
    command = [sys.executable, "-m", "asyncgrpo.cli.main", "chat", str(adapted.path)]
    typed = b"hello\n\n/new\nagain\nno text: \xff\xfe\n" + b"long " * 500 + b"\n"
    done = subprocess.run(command, input=typed, capture_output=True, timeout=120)
    shown = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert shown.startswith(f"{adapted.path}, final model; /new begins anew, Ctrl-C cuts an answer, Ctrl-D ends\n")
    assert re.search(r"^the prompt has \d{3,} tokens and the model room for \d+, 12 of them", shown, re.MULTILINE)
    assert b"Traceback" not in done.stderr


def test_what_a_chat_remembers(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[list[str]] = []

    def answer(history: Any) -> str:
        heard.append([message["content"] for message in history])
        if history[-1]["content"] == "slow":
            raise KeyboardInterrupt
        if history[-1]["content"] == "long":
            raise DataError("the prompt has 9 tokens")
        return f"re {history[-1]['content']}"

    talk(iter(["a", " ", "slow", "long", "b", "/new", "c"]), answer)
    assert heard == [["a"], ["a", "re a", "slow"], ["a", "re a", "long"], ["a", "re a", "b"], ["c"]]
    assert capsys.readouterr().out == " …\nthe prompt has 9 tokens; /new begins anew\n"


def test_the_card_of_the_final_model(adapted: RunFolder, tiny_model: Path) -> None:
    card = ModelCard.load(adapted.model_dir / "README.md")
    assert card.data.library_name == "transformers"
    assert card.data.tags == ["grpo", "reinforcement-learning", "asyncgrpo", "lora"]
    assert card.data.base_model is None  # a local folder is none that a hub knows
    text = card.text
    assert (
        f"{tiny_model.name}, trained with GRPO by asyncgrpo for 2 steps on rows.jsonl: LoRA adapters of rank 4" in text
    )
    assert "\nReward functions: `run_cases:mean_token` x 1.\n" in text
    assert "| `lora.lora_r` | 4 |" in text
    assert "| `training.learning_rate` | 0.01 |" in text
    assert f"* torch {torch.__version__}" in text
    assert "![reward per step](reward.png)" in text
    assert (adapted.model_dir / "reward.png").read_bytes() == adapted.reward_plot.read_bytes()
    assert str(tiny_model.parent) not in text


def test_a_card_names_hub_models_and_no_secrets(tmp_path: Path) -> None:
    config = run_config(
        tmp_path / "x",
        tmp_path,
        urls=["http://host:1"],
        data={"dataset": "https://me:hidden@host/rows.jsonl?token=1", "system_prompt": "a|b\nc"},
        engines={"api_key_env": "MY_KEY", "extra_args": ("--api-key", "hunter2")},
    )
    config = config.model_copy(update={"model": config.model.model_copy(update={"path": "org/base"})})
    write_model_card(tmp_path, RunFolder(tmp_path / "run"), config, 3)
    text = (tmp_path / "README.md").read_text()
    assert ModelCard(text).data.base_model == "org/base"
    assert ModelCard(text).data.datasets is None
    for secret in ("hidden", "hunter2", "MY_KEY", "token=1", str(tmp_path)):
        assert secret not in text
    assert "| `data.system_prompt` | a\\|b c |" in text
    assert "reward.png" not in text


def test_a_card_names_the_datasets_of_a_mix_and_no_folders(tmp_path: Path) -> None:
    names = [str(tmp_path / "rows.jsonl"), "org/more", "reasoning_gym:leg_counting"]
    config = run_config(
        tmp_path / "x",
        tmp_path,
        data={"mix": [{"dataset": name, "weight": 2.0} for name in names]},
        curriculum={"kind": "pass_rate"},
    )
    write_model_card(tmp_path, RunFolder(tmp_path / "run"), config, 3)
    text = (tmp_path / "README.md").read_text()
    assert ModelCard(text).data.datasets == ["org/more"]
    assert "for 3 steps on rows.jsonl, org/more, reasoning_gym:leg_counting: all weights" in text
    assert '| `data.mix` | [{"dataset": "rows.jsonl", "weight": 2.0}, ' in text
    assert "| `curriculum.kind` | pass_rate |" in text
    assert str(tmp_path) not in text
