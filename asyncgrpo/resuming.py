"""How a run gets its folder: a new one, or that of an earlier start, which it goes on from.

    lock -> newest complete checkpoint -> are the settings those of the run? -> take back what came after it

Nothing is taken back before everything was asked that can be without a model: settings, dataset, lengths of files. A
learner that does not take its part of the checkpoint refuses later; the same command then goes on from there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from asyncgrpo.checkpoint.compare import Difference, check_resumable, differences, reward_differences
from asyncgrpo.checkpoint.store import Checkpoint
from asyncgrpo.checkpoints import REWARDS, read_config, store_of
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import CheckpointError, RunFolderError
from asyncgrpo.evaluations import is_last_owed
from asyncgrpo.observe.evaluations import kept_length
from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.observe.rewind import check_lengths, growing_files, lines_since, rewind
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.settings_history import Change, take_back_changes
from asyncgrpo.preflight import Job
from asyncgrpo.run_state import read

logger = logging.getLogger(__name__)

OF_A_START = {"run.output_dir", "run.resume", "run.allow_changes"}
"""Settings that say how a start of a run begins, so that a change of them is none of the run's."""


class Beginning(NamedTuple):
    job: Job
    folder: RunFolder
    """Locked; to be closed."""
    checkpoint: Checkpoint | None
    """To go on from; None: the run is new."""
    notes: list[str]
    """What a user should know of the resume."""
    changes: list[Change]
    """Of settings, since the checkpoint."""


def begin(job: Job) -> Beginning:
    """Raises RunFolderError, CheckpointError or ConfigError, each naming value and remedy."""
    run, there = job.config.run, RunFolder(job.config.run.output_dir)
    if run.resume == "allow" and there.was_cut_off:
        return _begin_again(job)
    if run.resume == "never" or (run.resume == "allow" and not there.has_checkpoint):
        return Beginning(job, RunFolder.create(run.output_dir), None, [], [])
    folder = RunFolder.reopen(run.output_dir)
    try:
        checkpoint, notes = _choose(folder, job.config)
        job, changed = compared(job, checkpoint)
        notes += [f"changed since: {difference}" for difference in changed]
        if checkpoint.step > job.total_steps or (checkpoint.step == job.total_steps and _has_ended(folder, job)):
            raise RunFolderError(
                f"run folder {folder.path} has trained all {checkpoint.step} steps; raise training.max_steps to go on, "
                "or choose another run.output_dir"
            )
        prompts = read(checkpoint.folder)["books"]["prompts"]["stream"]
        job.prompts.restore(prompts, allow_changed=run.allow_changes)
        notes = [*goes_on(folder, checkpoint, job), *notes]
        go_back(folder, checkpoint, job.config)
    except BaseException:
        folder.close()
        raise
    changes = [Change(*each[:3], each.kind == "meaning") for each in changed if each.setting not in OF_A_START]
    return Beginning(job, folder, checkpoint, notes, changes)


def _begin_again(job: Job) -> Beginning:
    """A run that was cut off before its first checkpoint begins anew in the same folder."""
    config = job.config
    folder = RunFolder.begin_again(config.run.output_dir)
    try:
        store_of(folder, config.checkpoint).clear_leftovers()
        aside = rewind(folder, {path.name: 0 for path in growing_files(folder)}, 0)
        faults = take_back_changes(folder, 0)
    except BaseException:
        folder.close()
        raise
    names = ", ".join(path.name for path in aside) or "nothing"
    note = f"begun anew: it was cut off before its first checkpoint; put aside: {names}"
    return Beginning(job, folder, None, [note, *faults], [])


def _has_ended(folder: RunFolder, job: Job) -> bool:
    """Its last step is summed up, which is the last thing that a run does, and its evaluation was not given up."""
    if not folder.summary_json.is_file() or is_last_owed(job, folder):
        return False
    return bool(json.loads(folder.summary_json.read_text())["steps"] == len(read_metrics(folder.metrics_file)))


def goes_on(folder: RunFolder, checkpoint: Checkpoint, job: Job) -> list[str]:
    """What a user is told before `go_back`: from where the run goes on, what is lost, and what is not. Raises
    CheckpointError."""
    state, step = read(checkpoint.folder), checkpoint.step
    lost = lines_since(folder.metrics_file, state["lengths"][folder.metrics_file.name])
    if lost:
        steps = f"step {step + 1} was" if lost == 1 else f"steps {step + 1} to {step + lost} were"
        rewound = f"{steps} trained after it and will be trained anew; what came of that is put aside (*.rewound-*)"
    else:
        rewound = "no step was completed after it"
    return [
        f"resuming after step {step} of {job.total_steps}, from {checkpoint.folder}",
        rewound,
        _waiting(state, job.config),
    ]


def _waiting(state: Mapping[str, Any], config: RunConfig) -> str:
    """What becomes of the groups that were not trained yet."""
    contract = state["contract"]
    finished, again = len(contract["finished"]), len(state["books"]["prompts"]["waiting"])
    if contract["bound"] != [config.buffer.max_staleness, config.fresh_groups]:  # as the contract will find
        finished, again = 0, again + finished
    groups = f"{finished} finished group{'' if finished == 1 else 's'} will be trained from the buffer"
    prompts = "1 prompt is" if again == 1 else f"{again} prompts are"
    return f"{groups}; {prompts} issued again (in flight then, or due for another try)"


def go_back(folder: RunFolder, checkpoint: Checkpoint, config: RunConfig) -> None:
    """Take back what the run did after a checkpoint. May be repeated after a kill.

    Raises RunFolderError or CheckpointError; nothing has then changed, unless the disk refused.
    """
    lengths = read(checkpoint.folder)["lengths"]
    check_lengths(folder, lengths)
    kept = {folder.evaluation_file.name: kept_length(folder.evaluation_file, checkpoint.step)}
    store_of(folder, config.checkpoint).set_aside_after(checkpoint.step)
    for path in rewind(folder, {**lengths, **kept}, checkpoint.step):
        logger.info("put aside: %s", path)


def newest(
    folder: RunFolder, config: RunConfig, objection: Callable[[Checkpoint], str | None] = lambda checkpoint: None
) -> tuple[Checkpoint | None, list[str]]:
    """`CheckpointStore.newest` of a run, with notes of what was passed over."""
    checkpoint, passed_over = store_of(folder, config.checkpoint).newest(objection)
    return checkpoint, [f"not resumed from: {reason}" for reason in passed_over]


def _choose(folder: RunFolder, config: RunConfig) -> tuple[Checkpoint, list[str]]:
    store_of(folder, config.checkpoint).clear_leftovers()
    checkpoint, skipped = newest(folder, config)
    if checkpoint is None:
        raise none_complete(folder, skipped)
    return checkpoint, skipped


def none_complete(folder: RunFolder, passed_over: Sequence[str]) -> CheckpointError:
    """The refusal of a run whose checkpoints were all passed over."""
    reasons = "\n".join(passed_over)
    return CheckpointError(
        f"no checkpoint in {folder.checkpoints_dir} is complete, so the run cannot be resumed; choose another "
        f"run.output_dir, or remove the folder to start anew\n{reasons}"
    )


def compared(job: Job, checkpoint: Checkpoint) -> tuple[Job, list[Difference]]:
    """The job as it goes on from a checkpoint, and which settings have changed since that was saved.

    Raises ConfigError for changes with meaning that `run.allow_changes` does not allow.
    """
    saved = read_config(checkpoint.folder)
    job = _with_saved_dtype(job, saved)
    config = job.config
    found = differences(saved, config)
    if not (saved.get("rewards") or config.rewards):  # else these have been compared, and say more
        found += reward_differences(saved.get(REWARDS), [(each.name, each.weight) for each in job.rewards])
    check_resumable(found, override="--run.allow_changes=true", allowed=config.run.allow_changes)
    return job, found


def _with_saved_dtype(job: Job, saved: Mapping[str, Any]) -> Job:
    """What running engines compute in is known once they are asked: they are held to what they did before."""
    if job.config.engines.dtype != "auto":
        return job
    engines = job.config.engines.model_copy(update={"dtype": saved["engines"]["dtype"]})
    return replace(job, config=job.config.model_copy(update={"engines": engines}))
