"""Where Prometheus finds a run: a file for its file-based service discovery, there exactly as long as the run is.

The run's own /metrics and those of its engines carry the label `run`; the engines' also `engine`, under the names that
the run gives them. A run that is killed leaves its file behind: its targets are then down, which is what an alert sees.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from asyncgrpo.errors import ConfigError, RunFolderError
from asyncgrpo.observe.files import write_text

__all__ = ["scrape_targets", "targets_file"]

_EVERYWHERE = ("0.0.0.0", "::")
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")


def scrape_targets(run: str, url: str | None, engines: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """What the file holds. url: of the run's own server, None if it has none. engines: name and URL.

    An engine whose URL has a login is left out: the file is no place for secrets.
    """
    entries = [] if url is None else [_entry(url, {"run": run, "role": "orchestrator"})]
    for name, engine_url in engines:
        if urlsplit(engine_url).username is None:
            entries.append(_entry(engine_url, {"run": run, "role": "engine", "engine": name}))
    return entries


@contextmanager
def targets_file(directory: str | None, run: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[Path | None]:
    """Inside the block `directory` has the file RUN-PROCESS.json; None: no file is wanted.

    Raises ConfigError where it cannot be written.
    """
    if directory is None:
        yield None
        return
    path = Path(directory) / f"{_UNFIT.sub('-', run)}-{os.getpid()}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(list(entries), indent=2) + "\n")
    except (OSError, RunFolderError) as error:
        raise ConfigError(f"observe.targets_dir={directory}: {error}; choose a folder that can be written") from error
    try:
        yield path
    finally:
        with suppress(OSError):  # gone already, or left for somebody to remove
            path.unlink()


def _entry(url: str, labels: Mapping[str, str]) -> dict[str, Any]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in _EVERYWHERE:
        host = socket.gethostname()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    special = {} if parts.scheme == "http" else {"__scheme__": parts.scheme}
    if (path := parts.path.rstrip("/")) != "":
        special["__metrics_path__"] = f"{path}/metrics"
    return {"targets": [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"], "labels": {**labels, **special}}
