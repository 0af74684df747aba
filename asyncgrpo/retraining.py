"""Trains once more what a run recorded: the same groups in the same order, without engines.

With an unchanged configuration on the same kind of machine every number is that of the run, to the last bit, so a bad
step can be studied as often as it takes. With another objective it shows what that would have done with the same data,
as far as data is the same: what a policy samples depends on how it was trained, and that stays the run's own.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncgrpo.batches import StepBatches
from asyncgrpo.concurrency import aside, deadline
from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import LoadedConfig, load_config, split_overrides
from asyncgrpo.config.names import FIELDS
from asyncgrpo.config.problems import validate
from asyncgrpo.config.render import render_config
from asyncgrpo.config.secrets import secret_of
from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import ConfigError, RunFolderError
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.observe.discovery import scrape_targets, targets_file
from asyncgrpo.observe.files import write_text
from asyncgrpo.observe.logs import setup_logging
from asyncgrpo.observe.metrics import LEARNER_STATES, REPORTED_AS, ReplayMetrics, run_info
from asyncgrpo.observe.recorded_groups import read_trained_groups, recorded_steps
from asyncgrpo.observe.recorder import Recorder, read_metrics
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.server import MetricsServer
from asyncgrpo.observe.settings_history import Change, read_history
from asyncgrpo.observe.timing import TimeAccount
from asyncgrpo.rewards.importing import OWN, from_config
from asyncgrpo.types import Group, StepReport

CHANGEABLE = ("run.output_dir", "lora.", "replay.", "objective.", "training.", "learner.", "observe.")
"""Settings that may differ from the run's: the others say how its data came about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainedStep:
    """One step beside what the run recorded of it."""

    step: int
    metrics: Mapping[str, float]
    """The learner's, under the names of a step record."""
    recorded: Mapping[str, Any]

    def differences(self) -> Iterator[tuple[str, float, Any]]:
        """Metrics that are not exactly the recorded ones: name, now, then. A number that is none equals null."""
        for name, value in self.metrics.items():
            then = self.recorded.get(name)
            if value != then and not (then is None and not math.isfinite(value)):
                yield name, value, then


def load_rerun(folder: str | Path, overrides: Sequence[str]) -> LoadedConfig:
    """The configuration that a recorded run had at its first step, with what is to be different.

    Raises ConfigError for a setting that the recorded data depends on, RunFolderError for a folder that is no run's.
    """
    run = RunFolder(folder)
    if not run.config_file.is_file():
        raise RunFolderError(f"{run.path} is no run folder: there is no {run.config_file.name}")
    pairs = split_overrides(overrides)
    for key, _ in pairs:
        if not key.startswith(CHANGEABLE):
            allowed = ", ".join(f"{name}*" if name.endswith(".") else name for name in CHANGEABLE)
            raise ConfigError(f"--{key}: what was sampled depends on it; only these may be changed: {allowed}")
    if not any(key == "run.output_dir" for key, _ in pairs):
        overrides = [*overrides, f"--run.output_dir={run.path}-replay"]
    return _as_it_began(load_config(run.config_file, overrides), run, {key for key, _ in pairs})


def changed_inside(source: RunFolder, last_step: int | None) -> list[str]:
    """Changes of settings that a resume made inside the steps up to `last_step`, which are trained as the first is."""
    lines = []
    for each in read_history(source):
        told = "; ".join(str(change) for change in each.changes if change.has_meaning)
        if told and each.first_step > 1 and (last_step is None or each.first_step <= last_step):
            lines.append(f"from step {each.first_step} on the run had other settings ({told})")
    return lines


def _as_it_began(loaded: LoadedConfig, run: RunFolder, given: Collection[str]) -> LoadedConfig:
    """What resumes have changed undone, the last first, but for what is given now. Of rewards only what was changed
    since their number last was: before that, an index may mean another one, or none."""
    values, undone, were_others = loaded.config.model_dump(mode="json"), {}, False
    for each in reversed(read_history(run)):
        for change in each.changes:
            were_others |= change.setting == "rewards" and each.first_step > 1
            if were_others and change.setting.startswith("rewards"):
                continue
            if each.first_step > 1 and change.has_meaning and change.setting not in given:
                _put(values, change)
                undone[change.setting] = f"{run.settings_file.name}, before step {each.first_step}"
    if not undone:
        return loaded
    sources = {key: undone.get(key, source) for key, source in loaded.sources.items()}
    return LoadedConfig(validate(values, where=lambda key: f" ({run.settings_file})"), sources)


def _put(values: dict[str, Any], change: Change) -> None:
    """Into `RunConfig.model_dump(mode="json")`; what is no setting of today is left out."""
    if change.setting in FIELDS:
        section, _, field = change.setting.partition(".")
        values[section][field] = change.old
    elif match := re.fullmatch(r"rewards\[(\d+)\]\.(\w+)", change.setting):
        values["rewards"][int(match[1])][match[2]] = change.old


def retrain(
    source: RunFolder,
    loaded: LoadedConfig,
    *,
    last_step: int | None = None,
    on_step: Callable[[RetrainedStep], None] = lambda step: None,
) -> list[RetrainedStep]:
    """Train the recorded steps of `source` up to `last_step`, from the model that the run began with.

    Leaves config.yaml, metrics.jsonl and final_model in `run.output_dir`. Raises RunFolderError, ConfigError and
    LearnerError.
    """
    steps = recorded_steps(source)[:last_step]
    config = loaded.config
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder.create(config.run.output_dir))
        write_text(folder.config_file, render_config(loaded))
        json_run = folder.path.name if config.observe.log_format == "json" else None
        stack.enter_context(setup_logging(folder.log_file, config.observe.log_level, json_run=json_run))
        return asyncio.run(_train(source, steps, config, folder, on_step))


async def _train(
    source: RunFolder, steps: Sequence[int], config: RunConfig, folder: RunFolder, on_step: Callable[..., None]
) -> list[RetrainedStep]:
    recorded = {record["step"]: record for record in read_metrics(source.metrics_file)}
    batches = StepBatches(config, _reward_weights(config))
    recorder, done = Recorder(folder), []
    learner = LearnerClient(config, folder.logs_dir)
    async with _exposed(config, folder, steps[-1]) as (metrics, time):
        try:
            await learner.start()
            for step in steps:
                groups = await _read(source, step, config.observe.write_timeout)
                batch = batches.make(groups, step - 1)
                with time.during("training"):
                    report = await learner.train(batch)
                batches.trained(groups, batch)
                done.append(RetrainedStep(step=step, metrics=_named(report), recorded=recorded.get(step, {})))
                record = {"step": step, "version": step - 1, **done[-1].metrics}
                metrics.retrained(record)
                recorder.append_step(record)
                on_step(done[-1])
            await learner.save_model(str(folder.model_dir))
        finally:
            await learner.stop()
    return done


@asynccontextmanager
async def _exposed(
    config: RunConfig, folder: RunFolder, target_steps: int
) -> AsyncIterator[tuple[ReplayMetrics, TimeAccount]]:
    """What a replay has to tell, at /metrics as a run's."""
    time, observe = TimeAccount(LEARNER_STATES), config.observe
    metrics = ReplayMetrics(
        info=run_info(config, folder.path),
        target_steps=target_steps,
        learner=time,
        stall_seconds=config.stall_report_after,
    )
    token = secret_of(observe.metrics_token_env, "observe.metrics_token_env")
    async with MetricsServer(metrics.registry, observe.metrics_host, observe.metrics_port, token) as server:
        name = folder.path.name
        with targets_file(observe.targets_dir, name, scrape_targets(name, server.url, [])):
            yield metrics, time


async def _read(source: RunFolder, step: int, timeout: float) -> list[Group]:
    what = f"reading the rollouts of step {step} (observe.write_timeout)"
    async with deadline(timeout, RunFolderError, what):
        return await aside(lambda: read_trained_groups(source, step))


def _named(report: StepReport) -> dict[str, float]:
    return {REPORTED_AS.get(name, f"learner/{name}"): value for name, value in report.metrics.items()}


def _reward_weights(config: RunConfig) -> dict[str, float]:
    """Needed by one aggregation only; the functions themselves are not called again."""
    if config.objective.multi_objective_aggregation != "normalize_then_sum":
        return {}
    sections = config.rewards or ((RewardSection(path=OWN),) if config.environment.is_used else ())
    if not sections:
        raise ConfigError(
            "objective.multi_objective_aggregation=normalize_then_sum needs each reward's weight, which a run from "
            "Python does not record; name the rewards in the run's config.yaml"
        )
    return {function.name: function.weight for function in from_config(sections)}
