"""Precedence, sources, and one clear line for every kind of mistake."""

from pathlib import Path

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import load_config, split_overrides
from asyncgrpo.config.names import FIELDS
from asyncgrpo.config.render import render_config
from asyncgrpo.errors import ConfigError


def written(folder: Path, text: str) -> str:
    path = folder / "run.yaml"
    path.write_text(text)
    return str(path)


def refusal(folder: Path, text: str, *overrides: str) -> str:
    """The error of a configuration, with the folder left out of it."""
    with pytest.raises(ConfigError) as caught:
        load_config(written(folder, text), overrides)
    return str(caught.value).replace(f"{folder}/", "")


def test_without_a_file_everything_is_default() -> None:
    loaded = load_config(None)
    assert loaded.config == RunConfig()
    assert set(loaded.sources) == {*FIELDS, "rewards"}
    assert set(loaded.sources.values()) == {"default"}


def test_command_line_wins_over_file_over_default(tmp_path: Path) -> None:
    path = written(tmp_path, "training:\n  max_steps: 5\n  learning_rate: 1e-5\n")
    loaded = load_config(path, ["--training.learning_rate=2e-6"])
    assert loaded.config.training.max_steps == 5
    assert loaded.config.training.learning_rate == 2e-6
    assert loaded.config.training.num_iterations == 1
    assert loaded.sources["training.max_steps"] == f"{path}:2"
    assert loaded.sources["training.learning_rate"] == "command line"
    assert loaded.sources["training.num_iterations"] == "default"


def test_override_forms(tmp_path: Path) -> None:
    overrides = ["--training.max_steps", "-1", "--engines.devices=[cpu, 'cuda:0,1']", "run.seed=7"]
    config = load_config(None, overrides).config
    assert (config.training.max_steps, config.engines.devices, config.run.seed) == (-1, ("cpu", "cuda:0,1"), 7)


def test_an_override_of_a_text_field_is_text() -> None:
    overrides = ["--run.output_dir=2024", "--data.dataset_split=true", "--data.system_prompt=null", "--model.path=null"]
    config = load_config(None, overrides).config
    assert (config.run.output_dir, config.data.dataset_split) == ("2024", "true")
    assert (config.data.system_prompt, config.model.path) == (None, "null")


def test_rewards_and_mappings_from_the_command_line() -> None:
    overrides = ["--rewards=[{path: 'a.py:f', weight: 2}]", "--data.chat_template_kwargs={enable_thinking: false}"]
    loaded = load_config(None, overrides)
    assert loaded.config.rewards[0].path == "a.py:f"
    assert loaded.config.rewards[0].weight == 2.0
    assert loaded.config.data.chat_template_kwargs == {"enable_thinking": False}
    assert loaded.sources["rewards"] == "command line"


def test_a_section_with_everything_commented_out_is_default(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "training:\n  # max_steps: 5\nrun: {seed: 1}")).config.run.seed == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "learning_rate: 1e-5",
            "unknown setting 'learning_rate' (run.yaml:1); "
            "learning_rate belongs to section training: write training.learning_rate",
        ),
        ("num-epochs: 3", "unknown setting 'num-epochs' (run.yaml:1); did you mean training.num_train_epochs?"),
        ("trainin: {}", "unknown setting 'trainin' (run.yaml:1); did you mean training?"),
        ("reward: []", "unknown setting 'reward' (run.yaml:1); did you mean rewards?"),
        (
            "run:\n  seed: 1\n  learning_rate: 1e-5",
            "unknown key 'learning_rate' in section run (run.yaml:3); "
            "learning_rate belongs to section training: write training.learning_rate",
        ),
        (
            "training: {max-steps: 1}",
            "unknown key 'max-steps' in section training (run.yaml:1); did you mean training.max_steps?",
        ),
        (
            "buffer: {max_stalenes: 1}",
            "unknown key 'max_stalenes' in section buffer (run.yaml:1); did you mean buffer.max_staleness?",
        ),
        (
            "run: {devices: [cpu]}",
            "unknown key 'devices' in section run (run.yaml:1); "
            "devices belongs to section engines or learner: write engines.devices or learner.devices",
        ),
        (
            "engines: {vllm_gpu_memory_utilization: 0.5}",
            "unknown key 'vllm_gpu_memory_utilization' in section engines (run.yaml:1); "
            "its name here is engines.gpu_memory_utilization",
        ),
        (
            "training: {gradient_accumulation_steps: 4}",
            "unknown key 'gradient_accumulation_steps' in section training (run.yaml:1); the batch is "
            "training.groups_per_step prompts x generation.num_generations samples, in training.num_minibatches "
            "updates; learner.token_budget only bounds memory",
        ),
        ("run: {zzzz: 1}", "unknown key 'zzzz' in section run (run.yaml:1); the section has output_dir, resume"),
        (
            "rewards: [{path: 'a:b', wight: 1}]",
            "unknown key 'wight' in rewards.0 (run.yaml:1); a reward has path, model, url, arguments, weight, name, ",
        ),
        ("rewards: [{weight: 1}]", "rewards: an entry has exactly one of path, model and url; one here has none"),
        ("rewards: correct", 'rewards = "correct" (run.yaml:1): expected a list, as in [a, b]'),
        ("training: {bf16: maybe}", 'training.bf16 = "maybe" (run.yaml:1): expected true or false'),
        ("training: {bf16: 1}", "training.bf16 = 1 (run.yaml:1): expected true or false"),
        ("training: {max_steps: 1.5}", "training.max_steps = 1.5 (run.yaml:1): expected a whole number"),
        ("training: {max_steps: 2.0}", "training.max_steps = 2.0 (run.yaml:1): expected a whole number"),
        ("training: {max_steps: true}", "training.max_steps = true (run.yaml:1): expected a whole number"),
        ("training: {max_steps: '5'}", 'training.max_steps = "5" (run.yaml:1): expected a whole number'),
        ("training: {max_steps: null}", "training.max_steps = null (run.yaml:1): expected a whole number"),
        ("training: {learning_rate: fast}", 'training.learning_rate = "fast" (run.yaml:1): expected a number'),
        ("training: {learning_rate: .inf}", "training.learning_rate = Infinity (run.yaml:1): expected a finite number"),
        ("training: {learning_rate: 0}", "training.learning_rate = 0 (run.yaml:1): expected more than 0.0"),
        (
            "run: {output_dir: 5}",
            "run.output_dir = 5 (run.yaml:1): expected text (in quotes, if it looks like a number)",
        ),
        ("engines: {devices: cpu}", 'engines.devices = "cpu" (run.yaml:1): expected a list, as in [a, b]'),
        (
            "engines: {extra_args: [--seed, 4]}",
            "engines.extra_args.1 = 4 (run.yaml:1): expected text (in quotes, if it looks like a number)",
        ),
        (
            "lora: {lora_target_modules: 5}",
            "lora.lora_target_modules = 5 (run.yaml:1): expected a list, as in [a, b] "
            "or text (in quotes, if it looks like a number)",
        ),
        (
            "objective: {loss_type: ppo}",
            'objective.loss_type = "ppo" (run.yaml:1): expected one of '
            "'grpo', 'dr_grpo', 'bnpo', 'dapo', 'luspo' or 'prompt_mean'",
        ),
        (
            "objective: {loss_type: cispo}",
            'objective.loss_type = "cispo" (run.yaml:1): expected one of '
            "'grpo', 'dr_grpo', 'bnpo', 'dapo', 'luspo' or 'prompt_mean'; cispo is a choice of objective.gate: write "
            "objective.gate=cispo",
        ),
        (
            "objective: {loss_type: gspo}",
            'objective.loss_type = "gspo" (run.yaml:1): expected one of '
            "'grpo', 'dr_grpo', 'bnpo', 'dapo', 'luspo' or 'prompt_mean'; gspo is "
            "objective.importance_sampling_level=sequence",
        ),
        (
            "objective: {gate: GSPO-token}",
            'objective.gate = "GSPO-token" (run.yaml:1): expected one of '
            "'clip', 'none', 'cispo', 'gmpo', 'sapo', 'vespo', 'topr', 'aipo', 'dppo_tv', 'dppo_kl' or 'm2po'; "
            "GSPO-token is objective.importance_sampling_level=sequence_token",
        ),
        (
            "objective: {kl_weight: behavior}",
            'objective.kl_weight = "behavior" (run.yaml:1): expected one of '
            "'none', 'proximal' or 'behaviour'; did you mean 'behaviour'?",
        ),
        (
            "objective: {kl_estimator: low_var}",
            "objective.kl_estimator = \"low_var\" (run.yaml:1): expected one of 'k1', 'k2' or 'k3'",
        ),
        ("objective: {beta: 1e30}", "objective.beta = 1e+30 (run.yaml:1): expected at most 1000"),
        ("objective: {entropy_coef: 1e4}", "objective.entropy_coef = 10000.0 (run.yaml:1): expected at most 1000"),
        (
            "engines: {dtype: bf16}",
            "engines.dtype = \"bf16\" (run.yaml:1): expected one of 'auto', 'float32' or 'bfloat16'",
        ),
        (
            "training: {lr_scheduler_type: constant-with-warmup}",
            'training.lr_scheduler_type = "constant-with-warmup" (run.yaml:1): expected one of '
            "'constant', 'constant_with_warmup', 'linear', 'cosine', 'cosine_with_restarts', 'polynomial' or "
            "'inverse_sqrt'; did you mean 'constant_with_warmup'?",
        ),
        ("training: 3", "training = 3 (run.yaml:1): expected a mapping of fields"),
        ("data: {chat_template_kwargs: 3}", "data.chat_template_kwargs = 3 (run.yaml:1): expected a mapping, as in"),
        ("generation: {num_generations: 1}", "generation.num_generations = 1 (run.yaml:1): expected at least 2"),
        (
            "generation: {num_generations: 4097}",
            "generation.num_generations = 4097 (run.yaml:1): expected at most 4096",
        ),
        (
            'run: {output_dir: "\\uD800"}',
            r"run.output_dir = '\ud800': expected text that UTF-8 can hold, without half of a surrogate pair "
            "(run.yaml:1)",
        ),
        (
            'data: {chat_template_kwargs: {a: ["\\uD800"]}}',
            r"data.chat_template_kwargs.a.0 = '\ud800': expected text that UTF-8 can hold",
        ),
        (f"training: {{learning_rate: 1{'0' * 400}}}", "training.learning_rate = an integer of 1329 bits: expected a"),
        ("run: {seed: -1}", "run.seed = -1 (run.yaml:1): expected at least 0"),
        ("lora: {lora_r: 70000}", "lora.lora_r = 70000 (run.yaml:1): expected at most 65536"),
        ("training: {groups_per_step: 70000}", "training.groups_per_step = 70000 (run.yaml:1): expected at most 65536"),
        ("training: {num_train_epochs: 2e6}", "training.num_train_epochs = 2000000.0 (run.yaml:1): expected at most"),
        ("objective: {epsilon_high: 2e6}", "objective.epsilon_high = 2000000.0 (run.yaml:1): expected at most"),
        ("rewards: [{path: 'a:b', weight: -1e7}]", "rewards.0.weight = -10000000.0 (run.yaml:1): expected at least"),
        (
            "training: {groups_per_step: 3, num_minibatches: 2}",
            "training.groups_per_step=3 does not divide into training.num_minibatches=2; valid: [1, 3]",
        ),
        (
            "{training: {groups_per_step: 1}, generation: {num_generations: 2}, learner: {devices: [cpu, cpu, cpu]}}",
            "learner.devices names 3 devices, but a minibatch has 2 samples",
        ),
        ("", "run.yaml: is empty"),
        ("- a", "run.yaml: expected sections with fields below them, found a list"),
        ("5", "run.yaml: expected sections with fields below them, found the single value 5"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, message: str) -> None:
    answer = refusal(tmp_path, text)
    assert answer.startswith(message)
    assert "\n" not in answer
    assert "Value error" not in answer


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--learning_rate=1"], "unknown setting 'learning_rate' (command line); learning_rate belongs to section"),
        (["--training.max-steps=3"], "unknown key 'max-steps' in section training (command line); did you mean"),
        (["--training.max_steps"], "--training.max_steps has no value; write --training.max_steps=value"),
        (["--training.max_steps", "--run.seed=1"], "--training.max_steps has no value"),
        (["--training={max_steps: 3}"], "--training names a section; set its fields one by one"),
        (["--training.max_steps=[1"], "--training.max_steps:1: not valid YAML"),
        (["--training.bf16=maybe"], 'training.bf16 = "maybe" (command line): expected true or false'),
        (["--rewards.0.weight=2"], "--rewards.0.weight: rewards are set as a whole"),
        (["oops"], "unexpected argument 'oops'; settings are written --section.field=value"),
    ],
)
def test_mistakes_on_the_command_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides)
    assert str(caught.value).startswith(message)


def test_every_problem_gets_its_own_line(tmp_path: Path) -> None:
    answer = refusal(tmp_path, "training: {bf16: maybe, max_step: 1}\nrun: {seed: x}")
    assert [line.split(" (")[0] for line in answer.splitlines()] == [
        "unknown key 'max_step' in section training",
        'run.seed = "x"',
        'training.bf16 = "maybe"',
    ]


def test_a_long_wrong_value_is_cut(tmp_path: Path) -> None:
    answer = refusal(tmp_path, f"run: {{seed: {'x' * 500}}}")
    assert len(answer) < 150


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: no such file$"):
        load_config(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "run.yaml")


def test_split_overrides_keeps_equals_signs_in_the_value() -> None:
    assert split_overrides(["--data.system_prompt=a=b", "--run.seed", "3"]) == [
        ("data.system_prompt", "a=b"),
        ("run.seed", "3"),
    ]


def test_rendered_configuration_loads_again_with_its_sources_beside_it(tmp_path: Path) -> None:
    rewards = "rewards: [{path: 'a.py:f', arguments: {limit: 3, words: ['no'], off: null}}, {path: 'b:c', name: 'yes'}]"
    path = written(tmp_path, f"training: {{max_steps: 5}}\n{rewards}")
    loaded = load_config(path, ["--data.system_prompt=Be: brief\n# really", "--training.adam_epsilon=1e-9"])
    for docs in (False, True):
        text = render_config(loaded, docs=docs)
        again = tmp_path / f"again-{docs}.yaml"
        again.write_text(text)
        assert load_config(again).config == loaded.config
    lines = {line.split(":")[0].strip(): line for line in render_config(loaded).splitlines()}
    assert lines["max_steps"].endswith(f"# {path}:1")
    assert lines["adam_epsilon"].endswith("# command line")
    assert lines["adam_beta1"].endswith("# default")


def test_documentation_of_every_field_is_rendered() -> None:
    text = render_config(load_config(None), docs=True)
    for key, field in FIELDS.items():
        assert field.description, key
        assert "\n".join(f"  # {line}" for line in field.description.splitlines()) in text


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("scale_rewards=false", "none"),
        ("scale_rewards=true", "group"),
        ("importance_sampling_correction=true", "token_truncate"),
    ],
)
def test_true_and_false_for_a_choice(setting: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"expected one of .*; write {meant}$"):
        load_config(None, [f"--objective.{setting}"])
