"""Checks of what one run needs: model, data, rewards, ports, folder. Nothing is loaded that takes long."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

from asyncgrpo.cli.checks.check import Check
from asyncgrpo.config import RunConfig
from asyncgrpo.errors import AsyncGRPOError

_CONNECT_TIMEOUT = 2.0


def model(config: RunConfig) -> Check:
    name = config.model.path
    path = Path(name)
    if not name:
        return Check("model", "fail", "model.path is not set", "name a folder in Hugging Face format, or a hub model")
    if not path.exists():
        if path.is_absolute() or name.startswith(".") or len(path.parts) > 2:
            return Check("model", "fail", f"{name}: no such folder", "change model.path")
        return Check("model", "warn", f"{name} is no folder here", "it will be looked up on the hub")
    for pattern in ("config.json", "*.safetensors", "tokenizer*"):
        if not any(path.glob(pattern)):
            return Check("model", "fail", f"{name} has no {pattern}", "save model and tokenizer with save_pretrained")
    return Check("model", "ok", name)


def rewards(config: RunConfig) -> Check:
    from asyncgrpo.rewards import from_config

    try:
        functions = from_config(config.rewards)
    except AsyncGRPOError as error:
        return Check("rewards", "fail", str(error), "change rewards")
    return Check("rewards", "ok", ", ".join(f"{function.name} x {function.weight:g}" for function in functions))


def dataset(config: RunConfig) -> Check:
    """The rows can be read, every prompt is one, and every column that a reward function requires is there."""
    from asyncgrpo.prompts import load_rows
    from asyncgrpo.rewards import check_parameters, from_config

    try:
        rows = load_rows(config)
    except AsyncGRPOError as error:
        return Check("dataset", "fail", str(error), "change data")
    detail = f"{config.data.dataset}: {len(rows)} rows"
    try:
        check_parameters(from_config(config.rewards), set(rows.column_names) - {config.data.prompt_column})
    except AsyncGRPOError as error:
        return Check("dataset", "fail", f"{detail}, but {error}", "change the function or the dataset")
    return Check("dataset", "ok", detail)


def engines_listen(config: RunConfig) -> Check:
    """Something accepts connections at every engine URL. Whether it is a fitting engine shows when the run starts."""
    urls = config.engines.urls
    if not urls:
        return Check("engines", "ok", f"{len(config.engines.devices)} to be started")
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return Check("engines", "fail", f"{url} is no URL", "write engines.urls: ['http://host:8000']")
        try:
            port = parts.port or {"http": 80, "https": 443}[parts.scheme]
            socket.create_connection((parts.hostname, port), timeout=_CONNECT_TIMEOUT).close()
        except (OSError, ValueError) as error:
            return Check("engines", "fail", f"{url}: {error}", "start the server, or change engines.urls")
    return Check("engines", "ok", ", ".join(urls))


def metrics_port(config: RunConfig) -> Check:
    host, port = config.observe.metrics_host, config.observe.metrics_port
    if port <= 0:
        return Check("metrics port", "ok", "off" if port < 0 else "a free one will be picked")
    try:
        with socket.create_server((host, port)):
            return Check("metrics port", "ok", f"{host}:{port} is free")
    except OSError as error:
        remedy = "change observe.metrics_port; 0 picks a free one"
        return Check("metrics port", "fail", f"{host}:{port}: {error.strerror}", remedy)


def run_folder(config: RunConfig) -> Check:
    path = Path(config.run.output_dir)
    remedy = "choose another run.output_dir"
    if path.is_dir() and any(path.iterdir()):
        return Check("run folder", "fail", f"{path} exists and is not empty", remedy)
    if path.exists() and not path.is_dir():
        return Check("run folder", "fail", f"{path} is a file", remedy)
    return Check("run folder", "ok", f"{path} is free")
