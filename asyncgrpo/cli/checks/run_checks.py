"""Checks of what one run needs: the same that refuse a run at its start, but all of them, one line each."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from asyncgrpo.cli.checks.check import Check
from asyncgrpo.config import RunConfig
from asyncgrpo.config.resolve import Machine, locate_model, resolve
from asyncgrpo.config.secrets import masked_url
from asyncgrpo.environments.building import find_source
from asyncgrpo.errors import AsyncGRPOError
from asyncgrpo.evaluation.held_out import held_out_rows
from asyncgrpo.forecast import former_model
from asyncgrpo.generation.spec import check_ports
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.playing import check_columns, reward_functions
from asyncgrpo.preflight import check_former_run, check_metrics_port, check_model_path, check_output_dir, prepare
from asyncgrpo.prompts import load_rows

_CONNECT_TIMEOUT = 2.0


def devices(config: RunConfig) -> Check:
    """What `auto` becomes on this machine, and that every named device is there."""

    def placement() -> str:
        placed = resolve(config, Machine.here())
        engines = (*placed.engines.devices, *map(masked_url, placed.engines.urls))
        return f"engines on {', '.join(engines)}, learner on {', '.join(placed.learner.devices)}"

    return _verdict("placement", placement)


def model(config: RunConfig) -> Check:
    """The folder holds a configuration, weights and a tokenizer. A hub name is not looked up."""
    check = _verdict("model", lambda: check_model_path(config.model.path), config.model.path)
    folder = Path(locate_model(config.model.path))
    if check.status == "fail":
        return check
    if not folder.is_dir():
        return Check("model", "warn", f"{config.model.path} is no folder here", "it will be looked up on the hub")
    for pattern in ("*.safetensors", "tokenizer*"):
        if not any(folder.glob(pattern)):
            remedy = "save model and tokenizer with save_pretrained"
            return Check("model", "fail", f"{config.model.path} has no {pattern}", remedy)
    return check


def environment(config: RunConfig) -> Check:
    """The environment and the tools can be imported, and are what a run can play. None is called."""

    def found() -> str:
        source = find_source(config)
        if source is None:
            return "none: a sample is one completion"
        tools = ", ".join(tool.name for tool in source.tools)
        return f"{source.name}{f' ({tools})' if tools else ''}, up to {config.environment.max_turns} turns"

    return _verdict("environment", found)


def rewards(config: RunConfig) -> Check:
    """Every reward function can be imported, and has what it needs."""

    def listed() -> str:
        functions = reward_functions(config, find_source(config))
        return ", ".join(f"{function.name} x {function.weight:g}" for function in functions)

    return _verdict("rewards", listed)


def dataset(config: RunConfig) -> Check:
    """The rows can be read, and every prompt is one."""
    return _verdict("dataset", lambda: str(load_rows(config)))


def held_out_dataset(config: RunConfig) -> Check:
    """The same of the rows to evaluate with."""
    return _verdict("held-out", lambda: str(held_out_rows(config) or "none: nothing is evaluated"))


def columns(config: RunConfig) -> Check:
    """Every column that a reward function requires is there."""
    try:
        rows = load_rows(config)
        source = find_source(config)
        functions = reward_functions(config, source)
    except AsyncGRPOError:  # said by the checks of the dataset and of the rewards
        return Check("columns", "warn", "not compared: there is no dataset or no rewards", "mend these first")

    def matched() -> str:
        names = set(rows.column_names) - {rows.prompt_column}
        check_columns(functions, source, names)
        return ", ".join(sorted(names)) or "none but the prompt"

    return _verdict("columns", matched)


def engines_listen(config: RunConfig) -> Check:
    """Something accepts connections at every engine URL. Whether it is a fitting engine shows when the run starts."""
    for url in config.engines.urls:
        parts = urlsplit(url)
        try:
            port = parts.port or {"http": 80, "https": 443}[parts.scheme]
            socket.create_connection((parts.hostname, port), timeout=_CONNECT_TIMEOUT).close()
        except (OSError, ValueError) as error:
            return Check("engines", "fail", f"{masked_url(url)}: {error}", "start the server, or change engines.urls")
    managed = len(config.engines.managed_devices)
    started = [f"{managed} to be started"] if managed else []
    return Check("engines", "ok", ", ".join([*map(masked_url, config.engines.urls), *started]))


def ports(config: RunConfig) -> Check:
    """The ports that the configuration names are free."""

    def free() -> str:
        check_ports(config)
        check_metrics_port(config)
        named = [port for port in (config.engines.port, config.observe.metrics_port) if port > 0]
        return f"{', '.join(map(str, named))} free" if named else "free ones will be picked"

    return _verdict("ports", free)


def run_folder(config: RunConfig) -> Check:
    """A run can be made there, or the one that is there goes on: which of them is said."""

    def fate() -> str:
        check_output_dir(config.run)
        folder = RunFolder(config.run.output_dir)
        if folder.has_checkpoint:
            return f"the run in {folder.path} goes on from its checkpoint"
        if folder.was_cut_off:
            return f"the run in {folder.path} begins anew: it was cut off before its first checkpoint"
        return f"{folder.path} is free"

    return _verdict("run folder", fate)


def former_settings(config: RunConfig) -> Check:
    """What a resume would find changed since the newest complete checkpoint, by the same comparison."""
    from asyncgrpo.resuming import compared, newest, none_complete  # not for who only wants --help

    name = "settings since the checkpoint"
    folder = RunFolder(config.run.output_dir)
    if config.run.resume == "never" or not folder.has_checkpoint:
        return Check(name, "ok", "there is none")
    try:
        job = prepare(config)
    except AsyncGRPOError:
        return Check(name, "warn", "not compared, for what the lines above say", "mend these first")

    def changed() -> str:
        checkpoint, passed_over = newest(folder, job.config)
        if checkpoint is None:
            raise none_complete(folder, passed_over)
        found = [f"changed since step {checkpoint.step}: {each}" for each in compared(job, checkpoint)[1]]
        return "; ".join([*passed_over, *found]) or f"none has changed since step {checkpoint.step}"

    return _verdict(name, changed)


def former_run(config: RunConfig) -> Check:
    """The run that this one is to be predicted from can be."""

    def fitted() -> str:
        check_former_run(config.run.plan_from)
        former_model(config)
        return config.run.plan_from or "no earlier run"

    return _verdict("predicted from", fitted)


def _verdict(name: str, check: Callable[[], str | None], detail: str = "") -> Check:
    """ok with what `check` returns, or fail with what it raises, which names the remedy itself."""
    try:
        return Check(name, "ok", check() or detail)
    except AsyncGRPOError as error:
        return Check(name, "fail", str(error))
