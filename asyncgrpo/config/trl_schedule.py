"""TRL's arguments about time: steps of several updates, checkpoints, warm-up. They change what is `rest` of a
translation: afterwards it counts as we do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from asyncgrpo.config.names import DOTTED
from asyncgrpo.config.trl_account import Translation
from asyncgrpo.config.trl_defaults import SAVE_STEPS

__all__ = ["count_steps", "saving", "warm_up"]

_SHARES = ("save_steps", "eval_steps")
"""transformers takes them below 1 as shares of all steps."""
_EPOCH = (
    "rows and steps of an epoch are not known here: set checkpoint.save_steps to rows / training.groups_per_step; "
    "meanwhile one is saved every checkpoint.save_minutes"
)
_BEST = (
    "nothing is kept for being the best: checkpoint.keep_every keeps some for ever, evaluation.jsonl says which was, "
    "and `asyncgrpo merge RUN --step N` makes a model of it"
)


def count_steps(rest: dict[str, Any], updates: int, said: Translation) -> None:
    """TRL counts optimiser updates, we count steps of several."""
    whole = rest.get("max_steps")
    for name in _SHARES:
        share = rest.get(name)
        if isinstance(share, float) and 0 < share < 1:
            if _is_count(whole):
                rest[name] = math.ceil(share * whole)
                said.notes.append(f"{DOTTED[name]}: {share:g} of {whole} updates")
            else:
                del rest[name]
                said.left_out[name] = f"a share of all steps; give their number, as {DOTTED[name]} or max_steps"
    for name in ("max_steps", *_SHARES):
        value = rest.get(name)
        if updates > 1 and _is_count(value):
            rest[name] = math.ceil(value / updates)
            said.notes.append(f"{DOTTED[name]}: {rest[name]} steps of {updates} updates each, for {value} updates")


def saving(rest: dict[str, Any], updates: int, arguments: Mapping[str, Any], said: Translation) -> None:
    """TRL saves every so many steps, or never, and never by the clock; a run here saves when it ends in any case.
    After `count_steps`."""
    strategy = rest.pop("save_strategy", "steps")
    if strategy is False:  # YAML's word for no
        strategy = "no"
    words = {"epoch": _EPOCH, "best": _BEST}
    if strategy not in ("no", "steps"):
        known = isinstance(strategy, str) and strategy in words
        said.left_out["save_strategy"] = words[strategy] if known else "refused: expected no, steps, epoch or best"
    if strategy != "steps":
        if rest.pop("save_steps", None) is not None:
            said.needless["save_steps"] = f"has no effect with save_strategy={strategy}, in TRL too"
    elif "save_steps" not in rest and "save_steps" not in said.left_out:
        rest["save_steps"] = math.ceil(SAVE_STEPS / updates)
        said.written[DOTTED["save_steps"]] = rest["save_steps"]
    if strategy in ("no", "steps") and "save_minutes" not in rest and "save_steps" not in said.left_out:
        rest["save_minutes"] = 0.0
        said.written[DOTTED["save_minutes"]] = 0.0
    if arguments.get("save_strategy") is not None and "save_strategy" not in said.left_out:
        key = DOTTED["save_steps" if strategy == "steps" else "save_minutes"]
        said.translated["save_strategy"] = key


def warm_up(rest: dict[str, Any], updates: int, schedule: str, said: Translation) -> None:
    """A number of updates, as here, or a share of all of them, which earlier versions call `warmup_ratio`. Before
    `count_steps`.

    schedule: TRL's default.
    """
    argument, amount = "warmup_steps", rest.get("warmup_steps")
    if rest.get("warmup_ratio") is not None:
        ratio = rest.pop("warmup_ratio")
        if amount:
            said.needless["warmup_ratio"] = "warmup_steps is given and wins, in TRL too"
        elif ratio:
            argument, amount = "warmup_ratio", ratio
        else:
            said.needless["warmup_ratio"] = "off"
    if not amount:
        return
    is_share = argument == "warmup_ratio" or (isinstance(amount, float) and 0 < amount < 1)
    if is_share and not (type(amount) in (int, float) and 0 < amount <= 1):
        said.left_out[argument] = "refused: expected a share of the updates, from 0 to 1"
        return
    if rest.get("lr_scheduler_type", schedule) == "constant":
        rest.pop("warmup_steps", None)
        said.needless[argument] = "has no effect with lr_scheduler_type=constant, in TRL too"
        return
    if is_share:
        rest.pop("warmup_steps", None)
        if not _is_count(rest.get("max_steps")):
            said.left_out[argument] = _as_steps(amount, updates)
            return
        rest["warmup_steps"] = math.ceil(amount * rest["max_steps"])
        said.translated[argument] = DOTTED["warmup_steps"]
        said.notes.append(
            f"{DOTTED['warmup_steps']}: {rest['warmup_steps']} updates are {amount:g} of max_steps={rest['max_steps']}"
        )
    if "lr_scheduler_type" not in rest:
        rest["lr_scheduler_type"] = said.written[DOTTED["lr_scheduler_type"]] = schedule


def _as_steps(share: float, updates: int) -> str:
    per_step = f" x {updates} updates per step" if updates > 1 else ""
    return (
        "a share of the updates, whose number is not known without max_steps: set training.warmup_steps to "
        f"{share:g} x rows x training.num_train_epochs / training.groups_per_step{per_step}, or give max_steps"
    )


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value > 0
