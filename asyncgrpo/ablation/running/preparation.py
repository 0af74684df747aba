"""What all arms of a seed begin from: made once per seed, by whoever needs it first, and shared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from asyncgrpo.ablation.design.content import preparation_key
from asyncgrpo.ablation.design.study import Prepare
from asyncgrpo.ablation.exclusive import alone
from asyncgrpo.errors import ConfigError
from asyncgrpo.observe.files import write_text
from asyncgrpo.user_code.importing import import_object

SETTINGS = "settings.json"
"""Of a folder in `prepared/`: what its function returned; there once it is complete."""


def prepared(shared: Path, prepare: Prepare, seed: int) -> dict[str, Any]:
    """Settings by dotted key for all runs of the seed. Waits while another process makes them.

    Raises ConfigError if the function returns anything else; what the function raises, it raises.
    """
    folder = shared / preparation_key(prepare.path, prepare.options, seed)
    with alone(folder):
        done = folder / SETTINGS
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            settings = import_object(prepare.path, "prepare")(folder, seed, dict(prepare.options))
            write_text(done, _as_json(prepare.path, settings))
        made: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        return made


def _as_json(path: str, settings: Any) -> str:
    if not isinstance(settings, dict) or not all(isinstance(key, str) and "." in key for key in settings):
        raise ConfigError(f"prepare.path = {path!r}: returned {settings!r}; it must return settings by dotted key")
    try:
        return json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in settings.items()})
    except TypeError as error:
        raise ConfigError(f"prepare.path = {path!r}: returned {settings!r}, which JSON cannot hold: {error}") from error
