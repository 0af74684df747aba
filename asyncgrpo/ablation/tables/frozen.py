"""A study as it was written down before its first run began, and what was changed of it since. Pure.

Invariant: from the first run on, what is frozen stays, and every other version of the study leaves a change behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncgrpo.ablation.design.digest import digest_of

__all__ = ["differences", "frozen"]

PLAN_FIELD = "plan.json"
"""Stands for all of them where what was frozen is lost."""


def frozen(study: Mapping[str, Any], before: Mapping[str, Any] | None, *, now: str, begun: int) -> dict[str, Any]:
    """These fields of plan.json: `frozen`, all of the study; its `sha256`; when it was `written_at`; `study_changed`.

    Args:
        study: as `Study.as_json` gives it, now. Values that tuning chooses are none of it.
        before: plan.json as it was; None: there is none.
        now: ISO 8601.
        begun: runs in the folder, over or not. Before there is one the study may change freely.

    A change has `at`, `runs_begun`, `sha256`, and `fields`, each with `field` (dotted), `then` and `now`; `then` is
    what it was before this change.
    """
    written = {"frozen": dict(study), "sha256": digest_of(study), "written_at": now, "study_changed": []}
    if not begun:
        return written
    change = {"at": now, "runs_begun": begun, "sha256": written["sha256"]}
    if before is None or "frozen" not in before:
        lost = {"field": PLAN_FIELD, "then": None, "now": "written anew"}
        return {**written, "study_changed": [{**change, "fields": [lost]}]}
    kept = {name: before[name] for name in written}
    if (fields := differences(before["study"], study)) or digest_of(before["study"]) != written["sha256"]:
        kept["study_changed"] = [*kept["study_changed"], {**change, "fields": fields}]
    return kept


def differences(then: Any, now: Any, field: str = "") -> list[dict[str, Any]]:
    """`field`, `then` and `now` of everything that is not the same, the deepest that can be named; None: absent.

    Entries of a list that have a `name`, as expectations do, are told apart by it.
    """
    then, now = _by_name(then), _by_name(now)
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        names = dict.fromkeys([*then, *now])
        deeper = (differences(then.get(name), now.get(name), f"{field}.{name}".lstrip(".")) for name in names)
        return [found for each in deeper for found in each]
    return [] if then == now else [{"field": field, "then": then, "now": now}]


def _by_name(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) and "name" in entry for entry in value):
        return value
    named = {entry["name"]: entry for entry in value}
    return named if len(named) == len(value) else value
