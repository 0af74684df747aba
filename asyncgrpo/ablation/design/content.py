"""The key of a run: a digest of everything that its numbers depend on, so that a run is done once.

Settings with their defaults, seed and budget, the preparation, the version of the package and the code of it that the
kind computes with, and the content of every file that a setting names.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncgrpo.ablation.design.digest import digest_of
from asyncgrpo.ablation.design.values import changed, own_name, settled
from asyncgrpo.ablation.kinds import kind_of

if TYPE_CHECKING:
    from asyncgrpo.ablation.design.arms import Run

KEY_LENGTH = 16
WITHOUT_EFFECT = ("run.output_dir", "run.resume", "run.allow_changes", "run.plan_from", "observe.")
"""Settings that no number depends on."""
WITH_FILES = ("model.", "lora.", "data.", "evaluation.", "environment.", "rewards")
"""Settings that may name files that numbers depend on, besides those of the kind's own section."""
_PACKAGE = Path(__file__).resolve().parents[2]


def content_key(run: Run) -> str:
    """Hexadecimal. Raises ConfigError for a configuration that is none."""
    same = changed(run.values, {"run.seed": 0})  # of all seeds of an arm
    settings = {**_settled(json.dumps(same), run.kind), "run.seed": run.seed}
    with_files = (*WITH_FILES, f"{own_name(run.kind)}.")
    content = {
        "settings": settings,
        "kind": run.kind,
        "stream": run.stream,
        "budget": run.budget.model_dump(),
        "evaluate_every": run.evaluate_every,
        "prepare": None if run.prepare is None else preparation_content(run.prepare.path, run.prepare.options),
        "version": version("asyncgrpo"),
        "code": _code_digest(kind_of(run.kind).code),
        "files": {
            name: file_digest(name)
            for name in _files(run.kind, *(value for key, value in settings.items() if key.startswith(with_files)))
        },
    }
    return _digest(content)


@functools.lru_cache(maxsize=256)
def _settled(values: str, kind: str) -> dict[str, Any]:
    settings = settled(json.loads(values), kind)
    return {name: value for name, value in settings.items() if not name.startswith(WITHOUT_EFFECT)}


def preparation_content(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a preparation's results depend on, besides the seed."""
    return {"path": path, "options": options, "code": file_digest(path) or _module_digest(path.partition(":")[0])}


def preparation_key(path: str, options: Mapping[str, Any], seed: int) -> str:
    return _digest({**preparation_content(path, options), "seed": seed, "version": version("asyncgrpo")})


def file_digest(name: str) -> str | None:
    """Of a file, or `file.py:function`; of a folder, by names and sizes; None: it is neither."""
    path = _existing(name)
    if path is None:
        return None
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return _digest(
        sorted((str(file.relative_to(path)), file.stat().st_size) for file in path.rglob("*") if file.is_file())
    )


def _files(*values: Any) -> Iterator[str]:
    """Those that any text in the values names."""
    for value in values:
        if isinstance(value, Mapping):
            yield from _files(*value.values())
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield from _files(*value)
        elif isinstance(value, str) and ("/" in value or "." in value) and _existing(value) is not None:
            yield value


def _existing(name: str) -> Path | None:
    for candidate in (name, name.rpartition(":")[0]):
        if candidate and len(candidate) < 1024 and Path(candidate).exists():
            return Path(candidate)
    return None


@functools.cache
def _code_digest(names: tuple[str, ...]) -> str:
    files = [file for name in names for file in sorted((_PACKAGE / name).rglob("*.py")) or [_PACKAGE / name]]
    return _digest([(str(file.relative_to(_PACKAGE)), file.read_text()) for file in files])


@functools.cache
def _module_digest(name: str) -> str | None:
    spec = find_spec(name) if name and not name.endswith(".py") else None
    return None if spec is None or spec.origin is None else file_digest(spec.origin)


def _digest(content: Any) -> str:
    return digest_of(content)[:KEY_LENGTH]
