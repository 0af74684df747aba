"""Everything that TRL takes is accounted for, and what is translated means the same."""

import re
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.cli.from_trl import account, yaml_of
from asyncgrpo.config.flat import AsyncGRPOConfig
from asyncgrpo.config.loading import load_config
from asyncgrpo.config.names import DOTTED, ELSEWHERE, FIELDS
from asyncgrpo.config.trl_account import Translation
from asyncgrpo.config.trl_arguments import read_arguments
from asyncgrpo.config.trl_defaults import WRITTEN, WRITTEN_ASYNC
from asyncgrpo.config.trl_tables import DEFAULTS, NEEDLESS, SCRIPT
from asyncgrpo.config.trl_translation import translate
from asyncgrpo.errors import ConfigError

GRPO_CONFIG = (Path(__file__).parent / "trl_1_16_arguments.txt").read_text().split()
_SCRIPT = """
    dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming ignore_bias_buffers
    reward_model_name_or_path reward_funcs model_name_or_path model_revision dtype attn_implementation use_peft
    lora_r lora_alpha lora_dropout lora_target_modules lora_target_parameters lora_modules_to_save
    lora_task_type use_rslora use_dora load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant
    bnb_4bit_quant_storage datasets streaming test_split_size env
"""
SCRIPT_ARGUMENTS = _SCRIPT.split()
"""Of TRL 1.16's GRPOScriptArguments, ModelConfig and DatasetMixtureConfig."""


def asked(said: Translation, section: str) -> dict[str, Any]:
    """A section without TRL's defaults."""
    return {key: v for key, v in said.sections.get(section, {}).items() if f"{section}.{key}" not in said.written}


def places(said: Translation, name: str) -> list[str]:
    tables = {"translated": said.translated, "needless": said.needless, "left out": said.left_out}
    return [title for title, table in tables.items() if name in table]


@pytest.mark.parametrize("value", [None, False, True, 3, 0.25, "text", ["text"], {"a": 1}], ids=str)
def test_no_argument_of_trl_is_lost(value: Any) -> None:
    names = [*GRPO_CONFIG, *SCRIPT_ARGUMENTS]
    assert len(names) > 210
    for name in names:
        said = translate({name: value})
        assert len(places(said, name)) == 1, (name, value, said)
        why = (said.left_out | said.needless | said.translated)[name]
        assert why, name
        assert "TRL 1.16 has no argument of this name" not in why
    everything = translate(dict.fromkeys(names, value))
    assert [name for name in names if len(places(everything, name)) != 1] == []


def test_what_is_translated_loads_and_is_what_python_makes_of_it(tmp_path: Path) -> None:
    given = {
        "learning_rate": 1e-5, "beta": 0.04, "use_bias_correction_kl": True, "loss_type": "cispo", "epsilon_high": 5.0,
        "vllm_importance_sampling_mode": "token_mask", "scale_rewards": False, "seed": 7, "temperature": 0.9,
        "report_to": "wandb", "output_dir": "runs/x", "num_generations": 4,
    }  # fmt: skip
    said = translate(given)
    path = tmp_path / "run.yaml"
    path.write_text(yaml_of(said.sections, "test"))
    assert (said.left_out, said.needless, said.mend) == ({}, {}, [])
    defaults = {"num_train_epochs": 3.0, "lr_scheduler_type": "linear", "max_completion_length": 512, "bf16": True}
    saving = {"save_steps": 500, "save_minutes": 0.0, "save_total_limit": None}
    correction = {"vllm_importance_sampling_clip_max": 3.0}
    written = {**defaults, **saving, **correction}
    assert said.written == {DOTTED[name]: value for name, value in written.items()}
    assert load_config(path).config == AsyncGRPOConfig(**given, groups_per_step=2, **written).to_run_config()
    assert said.sections["training"]["groups_per_step"] == 2  # TRL's 8 completions, 4 each


@pytest.mark.parametrize(
    ("batch", "training"),
    [
        ({}, {"groups_per_step": 1}),
        ({"per_device_train_batch_size": 16, "num_processes": 4}, {"groups_per_step": 8}),
        ({"gradient_accumulation_steps": 4}, {"groups_per_step": 4}),
        (
            {"gradient_accumulation_steps": 2, "steps_per_generation": 8},
            {"groups_per_step": 8, "num_minibatches": 4},
        ),
        ({"generation_batch_size": 64}, {"groups_per_step": 8, "num_minibatches": 8}),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 1}, {"groups_per_step": 4}),
        (
            {"steps_per_generation": 2, "num_iterations": 3, "max_steps": 100, "save_steps": 12},
            {"groups_per_step": 2, "num_minibatches": 2, "num_iterations": 3, "max_steps": 17},
        ),
    ],
)
def test_batches_and_steps(batch: dict[str, int], training: dict[str, int]) -> None:
    said = translate(batch)
    assert asked(said, "training") == training
    assert said.left_out == {}
    if "save_steps" in batch:
        assert asked(said, "checkpoint") == {"save_steps": 2}
        assert "training.max_steps: 17 steps of 6 updates each, for 100 updates" in said.notes


@pytest.mark.parametrize(
    "batch", [{"per_device_train_batch_size": 3}, {"gradient_accumulation_steps": 2, "steps_per_generation": 3}]
)
def test_batches_that_cannot_be_told_are_left_out(batch: dict[str, int]) -> None:
    said = translate(batch)
    assert said.left_out.keys() == batch.keys()
    assert all(why.startswith("the batch is training.groups_per_step prompts") for why in said.left_out.values())


def test_two_words_for_one_size_are_refused_as_in_trl() -> None:
    said = translate({"steps_per_generation": 2, "generation_batch_size": 64})
    assert said.left_out.keys() == {"steps_per_generation", "generation_batch_size"}
    assert "groups_per_step" not in said.sections["training"]
    said = translate({"groups_per_step": 5, "gradient_accumulation_steps": 4})
    assert asked(said, "training") == {"groups_per_step": 5}
    assert said.left_out == {"gradient_accumulation_steps": "training.groups_per_step is given, and says it all"}


def test_rewards() -> None:
    names = ["accuracy_reward", "my_lib.rewards.brevity"]
    said = translate({"reward_funcs": names, "reward_weights": [1, 0.25]})
    assert said.sections["rewards"] == [
        {"path": "accuracy", "weight": 1.0},
        {"path": "my_lib.rewards:brevity", "weight": 0.25},
    ]
    assert said.translated["reward_weights"] == "rewards, weight of each"
    said = translate({"reward_funcs": ["get_soft_overlong_punishment"]})
    arguments = {"max_completion_length": 1280, "soft_punish_cache": 256}
    assert said.sections["rewards"] == [{"path": "soft_overlong", "arguments": arguments}]
    said = translate({"reward_funcs": ["another_reward"]})
    assert said.sections["rewards"] == [{"path": "trl.rewards:another_reward"}]
    assert said.notes[:1] == ["trl.rewards:another_reward is TRL's own function, which needs trl installed"]


def test_adapters() -> None:
    said = translate({"use_peft": True, "lora_alpha": 64})
    assert said.sections["lora"] == {"lora_r": 16, "lora_alpha": 64, "lora_dropout": 0.05}
    assert [note.partition(",")[0] for note in said.notes[:2]] == [
        "lora.lora_dropout: 0.05 is TRL's default; 0.0",
        "lora.lora_target_modules: all-linear",
    ]
    named = translate({"use_peft": True, "lora_dropout": 0.0, "lora_target_modules": ["q_proj"]})
    assert named.sections["lora"]["lora_target_modules"] == ["q_proj"]
    assert not any(note.startswith("lora.") for note in named.notes)
    said = translate({"lora_r": 8})
    assert said.needless == {"lora_r": "has no effect without use_peft, in TRL too"}
    assert "lora" not in said.sections


@pytest.mark.parametrize(
    ("given", "staleness"),
    [
        ({"weight_sync_steps": 1}, 4),
        ({"weight_sync_steps": 1, "max_staleness": 3}, 3),
        ({"weight_sync_steps": 4, "max_staleness": 0}, 3),  # trained in the last step before the next publish
        ({"weight_sync_steps": 4}, 19),
    ],
)
def test_publishes_are_counted_in_steps(given: dict[str, Any], staleness: int | None, tmp_path: Path) -> None:
    said = translate(given)
    assert said.sections.get("buffer", {}).get("max_staleness") == staleness
    assert said.translated["weight_sync_steps"] == "weights.publish_interval"
    assert (said.left_out, said.mend) == ({}, [])
    (tmp_path / "run.yaml").write_text(yaml_of(said.sections, "test"))
    assert load_config(tmp_path / "run.yaml").config.weights.publish_interval == given["weight_sync_steps"]


def test_a_warm_up_is_of_the_schedule_that_trl_has_by_default(tmp_path: Path) -> None:
    said = translate({"warmup_steps": 10, "max_steps": 100})
    assert (said.left_out, said.mend) == ({}, [])
    assert said.sections["training"] | {"lr_scheduler_type": "linear", "warmup_steps": 10} == said.sections["training"]
    assert said.written["training.lr_scheduler_type"] == "linear"


@pytest.mark.parametrize(
    ("given", "steps", "place"),
    [
        ({"warmup_ratio": 0.1, "max_steps": 95}, 10, "translated"),
        ({"warmup_steps": 0.1, "max_steps": 95}, 10, "translated"),  # what transformers 5 makes of the ratio
        ({"warmup_ratio": 0.1, "max_steps": 95, "num_iterations": 2}, 10, "translated"),  # both count updates
        ({"warmup_ratio": 0.1, "warmup_steps": 4, "max_steps": 95}, 4, "needless"),
        ({"warmup_ratio": 0.0, "max_steps": 95}, None, "needless"),
        ({"warmup_ratio": 0.1, "max_steps": 95, "lr_scheduler_type": "constant"}, None, "needless"),
        ({"warmup_ratio": 0.1, "max_steps": 95, "weight_sync_steps": 1}, None, "needless"),  # constant by default
        ({"warmup_ratio": 1.5, "max_steps": 95}, None, "left out"),
        ({"warmup_ratio": "a tenth", "max_steps": 95}, None, "left out"),
        ({"warmup_ratio": 0.1}, None, "left out"),
        ({"warmup_steps": 0.1}, None, "left out"),
    ],
    ids=str,
)
def test_a_share_of_warm_up_becomes_updates(
    given: dict[str, Any], steps: int | None, place: str, tmp_path: Path
) -> None:
    said = translate(given)
    argument = next(iter(given))
    assert places(said, argument) == [place]
    assert said.sections["training"].get("warmup_steps") == steps
    (tmp_path / "run.yaml").write_text(yaml_of(said.sections, "test"))
    load_config(tmp_path / "run.yaml")
    if "max_steps" not in given:
        assert (
            "training.warmup_steps to 0.1 x rows x training.num_train_epochs / training.groups_per_step, or"
            in (said.left_out[argument])
        )


@pytest.mark.parametrize(
    ("given", "checkpoint", "left_out"),
    [
        ({}, {"save_steps": 500, "save_minutes": 0.0, "save_total_limit": None}, []),
        ({"save_total_limit": 3}, {"save_steps": 500, "save_minutes": 0.0, "save_total_limit": 3}, []),
        ({"num_iterations": 2}, {"save_steps": 250, "save_minutes": 0.0, "save_total_limit": None}, []),
        (
            {"save_strategy": "steps", "save_steps": 20},
            {"save_steps": 20, "save_minutes": 0.0, "save_total_limit": None},
            [],
        ),
        ({"save_strategy": "no", "save_steps": 20}, {"save_minutes": 0.0, "save_total_limit": None}, []),
        ({"save_strategy": False}, {"save_minutes": 0.0, "save_total_limit": None}, []),
        ({"save_strategy": "epoch"}, {"save_total_limit": None}, ["save_strategy"]),
        ({"save_strategy": "best", "save_steps": 20}, {"save_total_limit": None}, ["save_strategy"]),
        ({"save_strategy": "now and then"}, {"save_total_limit": None}, ["save_strategy"]),
        (
            {"save_steps": 0.2, "max_steps": 99},
            {"save_steps": 20, "save_minutes": 0.0, "save_total_limit": None},
            [],
        ),
        ({"save_steps": 0.2}, {"save_total_limit": None}, ["save_steps"]),
    ],
    ids=str,
)
def test_checkpoints_come_when_trl_saves_them(
    given: dict[str, Any], checkpoint: dict[str, Any], left_out: list[str], tmp_path: Path
) -> None:
    said = translate(given)
    assert (said.sections["checkpoint"], list(said.left_out), said.mend) == (checkpoint, left_out, [])
    assert all(len(places(said, name)) == 1 for name in given)
    (tmp_path / "run.yaml").write_text(yaml_of(said.sections, "test"))
    assert load_config(tmp_path / "run.yaml").config.checkpoint.save_total_limit == checkpoint["save_total_limit"]


def test_steps_of_several_updates_are_counted_for_evaluations_too() -> None:
    given = {"per_device_train_batch_size": 8, "num_iterations": 2, "max_steps": 100, "save_steps": 100}
    said = translate({**given, "eval_strategy": "steps", "eval_steps": 50, "dataset_name": "org/rows"})
    assert said.sections["evaluation"]["eval_steps"] == 25
    assert (said.sections["training"]["max_steps"], said.sections["checkpoint"]["save_steps"]) == (50, 50)


@pytest.mark.parametrize(("given", "split"), [({}, "test"), ({"dataset_test_split": "held"}, "held")])
def test_an_evaluation_is_of_the_datasets_other_split(given: dict[str, Any], split: str) -> None:
    on = {"eval_strategy": "steps", "eval_steps": 5, "dataset_name": "org/rows", "dataset_config": "main"}
    said = translate({**on, **given})
    wanted = {"dataset": "org/rows", "dataset_config": "main", "dataset_split": split, "eval_steps": 5}
    assert said.sections["evaluation"] == {"eval_strategy": "steps", **wanted}
    assert (said.left_out, said.mend) == ({}, [])
    assert set(given) <= said.translated.keys()
    off = translate({"dataset_name": "org/rows", **given})
    assert "evaluation" not in off.sections


def test_what_is_refused_is_left_out_with_the_reason_and_the_rest_loads(tmp_path: Path) -> None:
    said = translate(
        {"top_p": 0.9, "loss_type": "cispo", "epsilon": 0.1, "lr_scheduler_type": "warp", "use_peft": True, "lora_r": 8}
    )
    assert said.left_out.keys() == {"top_p", "epsilon", "lr_scheduler_type"}
    assert said.left_out["epsilon"].startswith("refused: objective.epsilon=0.1 has no effect with objective.gate=cispo")
    assert said.sections["lora"]["lora_r"] == 8
    path = tmp_path / "run.yaml"
    path.write_text(yaml_of(said.sections, "test"))
    assert load_config(path).config.objective.gate == "cispo"


def test_a_misspelt_argument_is_named() -> None:
    assert translate({"learning_rat": 1e-5}).left_out == {
        "learning_rat": "TRL 1.16 has no argument of this name; did you mean learning_rate?"
    }


def test_defaults_with_another_meaning_are_written_down_unless_given() -> None:
    said = translate({"max_completion_length": 512})
    assert said.sections["training"]["num_train_epochs"] == said.written["training.num_train_epochs"] == 3.0
    assert "generation.max_completion_length" not in said.written
    assert "training.num_train_epochs" not in translate({"max_steps": 5}).written
    assert "training.num_train_epochs" in translate({"max_steps": -1}).written
    assert "training.bf16" not in translate({"fp16": True}).written
    assert said.written["objective.importance_sampling_correction"] == "sequence_mask"
    off = translate({"vllm_importance_sampling_correction": False})
    assert off.sections["objective"] == {"importance_sampling_correction": "none"}  # and no bound, which is refused
    assert "  training.num_train_epochs: 3.0; here 1.0" in account(said)
    assert "  training.gradient_checkpointing: here false; as in TRL: true" in account(said)


def test_arguments_of_the_async_trainer_have_its_defaults() -> None:
    said = translate({"max_inflight_tasks": 8})
    assert (said.sections["generation"], said.sections["buffer"]) == (
        {"max_completion_length": 2048},
        {"max_staleness": 4},
    )
    assert "lr_scheduler_type" not in said.sections["training"]
    assert "objective" not in said.sections


def test_the_table_of_defaults_is_that_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "coming_from_trl.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    columns = {"GRPO": {name: said for name, _, said, _ in rows}, "async": {name: said for name, _, _, said in rows}}
    names_and_places = {"output_dir", "log_level", "project", "vllm_server_base_url"}
    names_and_places |= {"eval_strategy", "eval_steps", "eval_on_start"}  # of what is only looked at
    only_async = {"token_budget", "request_timeout"}  # memory and patience
    for column, written in (("GRPO", WRITTEN), ("async", WRITTEN_ASYNC)):
        told = {name: said.removesuffix(" unless fp16 is set") for name, said in columns[column].items() if said != "—"}
        told = {name: said for name, said in told.items() if name not in names_and_places | only_async}
        both = {**written, **DEFAULTS}
        if column == "async":
            told.pop("lr_scheduler_type"), both.pop("vllm_gpu_memory_utilization")  # ours; has none
        assert told == {name: str(value) for name, value in both.items()}
        assert all(FIELDS[DOTTED[name]].default != value for name, value in both.items())


def test_advice_names_settings_that_exist() -> None:
    for name, advice in SCRIPT.items():
        assert name not in DOTTED, name
        assert all(key in FIELDS for key in re.findall(r"<([^>]*)>", advice)), name
    assert {*ELSEWHERE, *SCRIPT, "log_level"} >= NEEDLESS


def test_a_command_line_with_its_launcher(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("learning_rate: 1e-5\nseed: 3\n")
    path = tmp_path / "train.sh"
    path.write_text(
        "# how we train\naccelerate launch --num_processes 4 --mixed_precision bf16 \\\n  scripts/grpo.py "
        "--config base.yaml --seed 7 --bf16 \\\n  --no_shuffle_dataset --reward_funcs a.b c.d "
        "--output_dir='runs/a b' --top_k None\n"
    )
    assert read_arguments(path) == {
        "num_processes": 4,
        "learning_rate": 1e-5,
        "seed": 7,
        "bf16": True,
        "shuffle_dataset": False,
        "reward_funcs": ["a.b", "c.d"],
        "output_dir": "runs/a b",
        "top_k": None,
    }


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "- a\n", "expected TRL's arguments, as `name: value` in YAML or as --name value"),
        ("a.yaml", "a: 1\na: 2\n", "'a' is given twice"),
        ("a.sh", "trl grpo --a 'b", "not a command line: No closing quotation"),
        ("a.sh", "accelerate launch --num_processes grpo.py --seed 1", r"a\.sh: --num_processes has no value; write"),
        ("a.sh", "torchrun --nproc-per-node --x grpo.py --seed 1", "--nproc-per-node has no value"),
        ("a.sh", "trl grpo --config a.sh", r"a\.sh: --config leads back to this file"),
        ("a.sh", "trl grpo --config none.yaml", r"none\.yaml: cannot be read: No such file"),
    ],
)
def test_what_is_no_file_of_arguments(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_arguments(tmp_path / name)
