"""TRL's arguments in our words: a configuration, and an account of every argument. Pure.

Invariant: each argument is in exactly one place of the account: translated, needless, or left out with what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncgrpo.config.names import DOTTED, FLAT, closest, dotted, spell
from asyncgrpo.config.trl import from_trl
from asyncgrpo.config.trl_account import Translation
from asyncgrpo.config.trl_defaults import defaults_of, problems_of, write_down
from asyncgrpo.config.trl_schedule import count_steps, saving, warm_up
from asyncgrpo.config.trl_tables import DEFAULTS, NEEDLESS, SCRIPT, advice_on, is_off
from asyncgrpo.errors import ConfigError

__all__ = ["Translation", "translate"]

_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size")
TRL_STALENESS = 4
"""`max_staleness` of TRL's AsyncGRPOConfig, unless it is given."""
_RENAMED = {
    "model_name_or_path": "model.path",
    "dataset_name": "data.dataset",
    "dataset_train_split": "data.dataset_split",
}
_TAKEN = {
    "use_bias_correction_kl": "objective.kl_weight",
    "vllm_importance_sampling_cap": "objective.importance_sampling_cap",
    "vllm_importance_sampling_mode": "objective.importance_sampling_correction",
}
"""By `from_trl`, under no name of ours."""

_REWARDS: Mapping[str, Mapping[str, Any]] = {
    "accuracy_reward": {"path": "accuracy"},
    "reasoning_accuracy_reward": {"path": "reasoning_accuracy"},
    "think_format_reward": {"path": "think_format"},
    "get_soft_overlong_punishment": {
        "path": "soft_overlong",
        "arguments": {"max_completion_length": 1280, "soft_punish_cache": 256},
    },
}
"""What TRL's script knows by name, with the arguments that it gives."""


def translate(arguments: Mapping[str, Any]) -> Translation:
    """Of a TRL 1.16 script (`trl grpo`)."""
    said = Translation()
    rest = {name: value for name, value in arguments.items() if value is not None}
    said.needless |= dict.fromkeys(arguments.keys() - rest.keys(), "off")
    settings: dict[str, Any] = {}
    _held_out(rest, said)
    _model_and_data(rest, said)
    _rewards(rest, said)
    _adapters(rest, said)
    defaults = defaults_of(rest)
    updates = _batch(rest, settings, said)
    _publishing(rest, said)
    warm_up(rest, updates, defaults.get("lr_scheduler_type", "constant"), said)
    count_steps(rest, updates, said)
    saving(rest, updates, arguments, said)
    flat = {name: rest.pop(name) for name in list(rest) if name in DOTTED or name in _TAKEN}
    settings |= _acceptable(flat, settings, said)
    for name, value in rest.items():
        _without_counterpart(name, value, arguments, said)
    for name, value in settings.items():
        section, _, key = DOTTED[name].partition(".")
        said.sections.setdefault(section, {})[key] = list(value) if isinstance(value, tuple) else value
    if not said.mend:
        said.mend = problems_of(said.sections)
    said.translated = {name: place for name, place in said.translated.items() if arguments.get(name) is not None}
    said.defaults = {DOTTED[name]: value for name, value in DEFAULTS.items() if name not in settings}
    write_down(defaults, {name for name, value in arguments.items() if value is not None} | settings.keys(), said)
    return said


def _put(said: Translation, key: str, value: Any, argument: str) -> None:
    section, _, name = key.partition(".")
    said.sections.setdefault(section, {})[name] = value
    said.translated[argument] = key


def _model_and_data(rest: dict[str, Any], said: Translation) -> None:
    for argument, key in _RENAMED.items():
        if rest.get(argument) is not None:
            _put(said, key, rest.pop(argument), argument)
    mixture = rest.get("datasets")
    if isinstance(mixture, list) and len(mixture) == 1 and set(mixture[0]) <= {"path", "name", "split", "columns"}:
        del rest["datasets"]
        for field_, key in (("path", "dataset"), ("name", "dataset_config"), ("split", "dataset_split")):
            if field_ in mixture[0]:
                _put(said, f"data.{key}", mixture[0][field_], "datasets")


def _held_out(rest: dict[str, Any], said: Translation) -> None:
    """TRL's script evaluates on another split of the dataset."""
    if rest.get("eval_strategy") != "steps" or not rest.get("dataset_name") or "eval_dataset" in rest:
        return
    split = rest.pop("dataset_test_split", "test")
    _put(said, "evaluation.dataset", rest["dataset_name"], "dataset_name")
    _put(said, "evaluation.dataset_split", split, "dataset_test_split")
    if "dataset_config" in rest:
        _put(said, "evaluation.dataset_config", rest["dataset_config"], "dataset_config")
    said.notes.append(f"evaluation.dataset: the split {split!r} of the dataset, as TRL's script has it")


def _rewards(rest: dict[str, Any], said: Translation) -> None:
    given = {name: rest.pop(name) for name in ("reward_funcs", "reward_weights") if name in rest}
    functions, weights = (_listed(given.get(name)) for name in ("reward_funcs", "reward_weights"))
    if not all(isinstance(name, str) for name in functions):
        said.left_out |= dict.fromkeys(given, "refused: reward_funcs names functions, and reward_weights has numbers")
        return
    if "reward_weights" in given:
        if functions and len(weights) == len(functions) and all(isinstance(w, int | float) for w in weights):
            said.translated["reward_weights"] = "rewards, weight of each"
        else:
            said.left_out["reward_weights"] = "each entry of rewards has its weight: one number per function"
            weights = []
    if "reward_funcs" in given:
        said.translated["reward_funcs"] = "rewards"
    entries = []
    for index, name in enumerate(functions):
        entry: dict[str, Any] = dict(_REWARDS.get(name) or {"path": ":".join(name.rsplit(".", 1))})
        if "." not in name and name not in _REWARDS:
            entry["path"] = f"trl.rewards:{name}"
            said.notes.append(f"{entry['path']} is TRL's own function, which needs trl installed")
        entries.append(entry | ({"weight": float(weights[index])} if weights else {}))
    if entries:
        said.sections["rewards"] = entries


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _adapters(rest: dict[str, Any], said: Translation) -> None:
    """TRL looks at the rest only with use_peft, whose rank is 16 unless it is given."""
    uses = rest.pop("use_peft", None)
    given = [name for name in rest if name.startswith("lora_") and name in DOTTED]
    if uses:
        rest.setdefault("lora_r", 16)
        said.translated["use_peft"] = "lora.lora_r"
        if "lora_dropout" not in rest:
            rest["lora_dropout"] = 0.05
            said.notes.append("lora.lora_dropout: 0.05 is TRL's default; 0.0, the default here, trains faster")
        if "lora_target_modules" not in rest:
            said.notes.append(
                "lora.lora_target_modules: all-linear, the default here; TRL takes peft's choice for the architecture, "
                "often q_proj and v_proj alone: name them for the same adapters"
            )
        return
    if uses is not None:
        said.needless["use_peft"] = "off"
    for name in given:
        del rest[name]
        said.needless[name] = "has no effect without use_peft, in TRL too"


def _batch(rest: dict[str, Any], settings: dict[str, Any], said: Translation) -> int:
    """Completions per device, accumulated, over processes, come to groups per step and updates per pass. Returns the
    updates of a step."""
    given = [name for name in _BATCH if rest.get(name) is not None]
    size, accumulated, per_generation, whole = (rest.pop(name, None) for name in _BATCH)
    if "groups_per_step" in rest:
        said.left_out |= dict.fromkeys(given, "training.groups_per_step is given, and says it all")
        return 1
    if per_generation is not None and whole is not None:
        both = "refused, as TRL does: generation_batch_size and steps_per_generation both say how much is generated"
        said.left_out |= dict.fromkeys(given, both)
        return 1
    processes = rest.get("num_processes") or 1
    numbers = (
        size or 8,
        accumulated or 1,
        processes,
        rest.get("num_generations") or 8,
        rest.get("num_iterations") or 1,
    )
    if not all(isinstance(number, int) and number > 0 for number in (*numbers, per_generation or 1, whole or 1)):
        said.left_out |= dict.fromkeys(given, spell(advice_on(_BATCH[0]) or "", dotted))
        return 1
    device, accumulated, processes, generations, iterations = numbers
    per_generation = whole // (device * processes) if whole else per_generation or accumulated
    longer, shorter = max(per_generation, accumulated), max(min(per_generation, accumulated), 1)
    completions = device * processes * longer
    if completions % generations or longer % shorter or (whole and whole % (device * processes)):
        said.left_out |= dict.fromkeys(given, spell(advice_on(_BATCH[0]) or "", dotted))
        return 1
    minibatches = per_generation // accumulated if per_generation > accumulated else 1
    settings["groups_per_step"] = completions // generations
    if minibatches > 1:
        settings["num_minibatches"] = minibatches
    said.translated |= dict.fromkeys(given, "training.groups_per_step, training.num_minibatches")
    said.notes.append(
        f"training.groups_per_step: {completions // generations} is {device} per device x {longer} micro-batches x "
        f"{processes} process{'es' if processes > 1 else ''} / {generations} samples per prompt"
        + ("" if rest.get("num_processes") else "; multiply it by the number of processes that TRL ran in")
    )
    return minibatches * iterations


def _publishing(rest: dict[str, Any], said: Translation) -> None:
    """TRL's AsyncGRPOTrainer publishes every so many steps, and counts staleness in publishes."""
    interval, staleness = rest.get("weight_sync_steps"), rest.get("max_staleness", TRL_STALENESS)
    if not (type(interval) is int and interval > 0 and type(staleness) is int and staleness >= 0):
        return
    if "publish_interval" in rest:
        said.left_out["weight_sync_steps"] = "weights.publish_interval is given, and says the same"
        del rest["weight_sync_steps"]
        return
    said.translated["weight_sync_steps"] = "weights.publish_interval"
    rest["publish_interval"] = rest.pop("weight_sync_steps")
    if interval > 1:
        rest["max_staleness"] = interval * (staleness + 1) - 1
        said.notes.append(
            f"buffer.max_staleness: {rest['max_staleness']} steps; TRL counts publishes, and {staleness} of {interval} "
            "steps each, with the steps since the last one, come to as many"
        )


def _acceptable(flat: dict[str, Any], beside: dict[str, Any], said: Translation) -> dict[str, Any]:
    """The settings among `flat`, without those that are refused, alone or with the others."""
    while (refusal := _refusal(flat | beside)) is not None:
        first = refusal.splitlines()[0]
        culprit = _culprit(first, flat, beside)
        if culprit is None:
            said.mend = refusal.splitlines()
            break
        said.left_out[culprit] = f"refused: {first}"
        del flat[culprit]
    values = dict(from_trl(flat)) if not said.mend else {name: flat[name] for name in flat if name in DOTTED}
    said.translated |= {name: _TAKEN.get(name) or DOTTED[name] for name in flat}
    return values


def _culprit(line: str, flat: Mapping[str, Any], beside: dict[str, Any]) -> str | None:
    """The argument without which this is not refused; of several, the one that is named first."""

    def rest(name: str) -> str:
        return _refusal({other: value for other, value in flat.items() if other != name} | beside) or ""

    def place(name: str) -> int:
        key = _TAKEN.get(name) or DOTTED[name]
        return line.find(key) if key in line else len(line)

    return min((name for name in flat if line not in rest(name).splitlines()), key=place, default=None)


def _refusal(flat: Mapping[str, Any]) -> str | None:
    """Why these settings are no configuration; None if they are."""
    values: dict[str, Any] = {}
    try:
        for name, value in from_trl(flat).items():
            section, _, key = DOTTED[name].partition(".")
            values.setdefault(section, {})[key] = value
    except ConfigError as error:
        return str(error)
    return "\n".join(problems_of(values)) or None


def _without_counterpart(name: str, value: Any, arguments: Mapping[str, Any], said: Translation) -> None:
    advice = advice_on(name)
    no_evaluation = name in ("dataset_test_split", "per_device_eval_batch_size", "eval_steps") and is_off(
        "eval_strategy", arguments.get("eval_strategy")
    )
    if advice is None:
        guess = closest(name, [*_KNOWN, *FLAT.values()])
        hint = f"; did you mean {guess}?" if guess else ""
        said.left_out[name] = f"TRL 1.16 has no argument of this name{hint}"
    elif is_off(name, value):
        said.needless[name] = "off"
    elif no_evaluation:
        said.needless[name] = "has no effect without eval_strategy, in TRL too"
    elif name in NEEDLESS:
        said.needless[name] = spell(advice, dotted)
    else:
        said.left_out[name] = spell(advice, dotted)


_KNOWN = (*_RENAMED, *_BATCH, *SCRIPT, "reward_funcs", "use_peft")
