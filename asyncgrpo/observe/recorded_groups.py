"""The groups that a run trained, read back from its rollout files: bit for bit what its learner was given.

Not recorded, and so not here: the dataset's other columns, which only reward functions see, and the metrics that these
logged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.recorder import rollout_file, step_of_rollouts
from asyncgrpo.observe.rollout_files import read_rollouts
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.types import Completion, Group, Prompt, Sample

__all__ = ["read_trained_groups", "recorded_steps"]

Row = Mapping[str, Any]


def recorded_steps(folder: RunFolder) -> list[int]:
    """Steps whose rollouts are there, without a gap from the first. Raises RunFolderError when step 1 is not, which
    says what is."""
    steps: list[int] = []
    while rollout_file(folder, len(steps) + 1).is_file():
        steps.append(len(steps) + 1)
    if not steps:
        raise _first_is_missing(folder)
    return steps


def _first_is_missing(folder: RunFolder) -> RunFolderError:
    there = [step for path in folder.rollouts_dir.glob("step_*.parquet") if (step := step_of_rollouts(path))]
    if not there:
        return RunFolderError(f"{rollout_file(folder, 1)} is not there; the run needs observe.save_rollouts=true")
    first, last = min(there), max(there)
    return RunFolderError(
        f"{folder.path} has rollouts of {_steps(first, last)} only; those of {_steps(1, first - 1)} were removed "
        "(observe.rollouts_keep_steps, observe.rollouts_max_gib), and training anew begins with step 1; a run that "
        "shall be trained again needs both left out"
    )


def _steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"


def read_trained_groups(folder: RunFolder, step: int) -> list[Group]:
    """The fresh groups of a step, in the order in which they were trained. Raises RunFolderError naming the file."""
    path = rollout_file(folder, step)
    try:
        rows = read_rollouts(path).to_pylist(maps_as_pydicts="strict")
    except FileNotFoundError as error:
        raise RunFolderError(f"{path} is not there any more") from error
    trained = [row for row in rows if row["fate"] == "trained"]
    if not trained:
        raise RunFolderError(f"{path} holds no trained samples")
    return [_group(list(rows)) for _, rows in groupby(trained, key=lambda row: row["group_id"])]


def _group(rows: Sequence[Row]) -> Group:
    first = rows[0]
    return Group(
        group_id=first["group_id"],
        prompt=_prompt(first),
        samples=tuple(_sample(row) for row in rows),
        start_version=first["start_version"],
        admitted_at=first["admitted_at"],
        entered_at=first["entered_at"],
    )


def _prompt(row: Row) -> Prompt:
    epoch, _, number = row["prompt_id"].partition("-")
    return Prompt(
        prompt_id=row["prompt_id"],
        epoch=int(epoch),
        row=int(number),
        prompt=json.loads(row["prompt"]) if row["conversational"] else row["prompt"],
        token_ids=tuple(row["prompt_token_ids"]),
    )


def _sample(row: Row) -> Sample:
    return Sample(
        completion=Completion(
            token_ids=row["token_ids"],
            behaviour_logprobs=row["behaviour_logprobs"],
            versions=row["versions"],
            sampled=row.get("sampled"),  # type: ignore[arg-type]  # absent in files from before there were turns
            finish_reason=row["finish_reason"],
            engine=row["engine"],
            started_at=row["started_at"],
            finished_at=row["finished_at"],
        ),
        text=row["completion"],
        rewards=row["rewards"],
        reward=row["reward"],
        extra=json.loads(row.get("extra") or "{}"),
    )
