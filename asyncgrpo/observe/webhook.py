"""Tells somebody by HTTP how a run ended.

    POST {"run": "first", "event": "failed", "step": 12, "target_steps": 40, "error": "…", "folder": "…", "text": "…"}

`text` says the same in a line, which is what Slack, Mattermost and Discord's Slack routes show. A webhook can do a run
no harm: one that fails or is late is said in the log.
"""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from asyncgrpo.config.secrets import is_http, masked, secret_of
from asyncgrpo.errors import ConfigError, RunFolderError
from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.observe.run_folder import RunFolder

__all__ = ["check_webhook", "end_told"]

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
LONGEST_ERROR = 1500
"""Characters; chats refuse long messages."""

Event = Literal["finished", "interrupted", "failed"]


def check_webhook(variable: str | None) -> str | None:
    """The URL in the environment variable that `observe.webhook_env` names; None if it names none. Raises
    ConfigError."""
    url = secret_of(variable, "observe.webhook_env")
    if url is not None and not is_http(url):
        raise ConfigError(f"observe.webhook_env={variable}: that environment variable holds no http:// or https:// URL")
    return url


@contextmanager
def end_told(url: str | None, name: str, folder: RunFolder, target_steps: int) -> Iterator[None]:
    """Tell `url` how the block ended, which is the run `name` in `folder`; None: tell nobody."""
    if url is None:
        yield
        return
    try:
        yield
    except KeyboardInterrupt:
        _tell(url, name, folder, target_steps, "interrupted")
        raise
    except BaseException as error:
        _tell(url, name, folder, target_steps, "failed", f"{type(error).__name__}: {error}")
        raise
    step = _last_step(folder)
    _tell(url, name, folder, target_steps, "finished" if step >= target_steps else "interrupted")


def _tell(url: str, name: str, folder: RunFolder, target_steps: int, event: Event, error: str | None = None) -> None:
    step, said = _last_step(folder), None if error is None else masked(error)[:LONGEST_ERROR]
    text = f"{name} {event} after {step} of {target_steps} steps" + (f": {said}" if said else "")
    message = {
        "run": name,
        "event": event,
        "step": step,
        "target_steps": target_steps,
        "error": said,
        "folder": str(folder.path),
        "text": text,
    }
    body, headers = json.dumps(message).encode(), {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()
    except (OSError, ValueError) as failure:  # URLError is an OSError; ValueError: a URL that urllib does not take
        logger.warning("the webhook (observe.webhook_env) was not told that the run %s: %s", event, _reason(failure))


def _reason(failure: Exception) -> str:
    """Without the URL, which may be a secret as a whole."""
    if isinstance(failure, urllib.error.HTTPError):
        return f"it answered {failure.code}"
    if isinstance(failure, urllib.error.URLError):
        return str(failure.reason)
    return type(failure).__name__


def _last_step(folder: RunFolder) -> int:
    try:
        records = read_metrics(folder.metrics_file)
    except RunFolderError:
        return 0  # it ended before its first step
    return int(records[-1]["step"]) if records else 0
