"""Tasks that `reasoning_gym` makes, as rows: `reasoning_gym:leg_counting` in place of a dataset.

A row says what its task is made from (`task`, `task_arguments`, `task_index`), so that whoever scores an answer can
make the very same task again and ask its own verifier (the reward `reasoning_gym`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Any

from asyncgrpo.config.data import TASKS
from asyncgrpo.config.sections import DataSection
from asyncgrpo.errors import ConfigError, DataError
from asyncgrpo.prompts.faults import one_line

__all__ = ["task_rows"]

DEFAULT_SIZE = 500
"""As reasoning_gym has it."""


def task_rows(data: DataSection, seed: int) -> Iterator[dict[str, Any]]:
    """The tasks of `data.dataset`, made one by one.

    seed: unless `data.task_arguments` has one. How many: its `size`, else `data.max_rows`, else 500. Raises ConfigError
    where reasoning_gym is missing, DataError for a task or an argument that it does not know.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(
            f"data.dataset={data.dataset} needs the package reasoning-gym: pip install 'asyncgrpo[tasks]'"
        ) from error
    task = data.dataset.removeprefix(TASKS)
    if task not in DATASETS:
        near = difflib.get_close_matches(task, DATASETS, n=3, cutoff=0.4)
        raise DataError(
            f"data.dataset={data.dataset}: reasoning_gym has no task {task!r}; "
            + (f"did you mean {' or '.join(near)}?" if near else "reasoning_gym.factory.DATASETS has all of them")
        )
    arguments = {"size": data.max_rows or DEFAULT_SIZE, "seed": seed, **data.task_arguments}
    try:
        made = reasoning_gym.create_dataset(task, **arguments)
    except (TypeError, ValueError, AssertionError, AttributeError) as error:  # its checks are assertions
        raise DataError(f"data.task_arguments={data.task_arguments}: {task} refuses them: {one_line(error)}") from error
    for index in range(len(made)):
        entry = made[index]
        yield {
            data.prompt_column: entry["question"],
            "answer": entry["answer"],
            "task": task,
            "task_arguments": json.dumps(arguments, sort_keys=True),
            "task_index": index,
        }
