"""The key of a run: a digest of everything that its numbers depend on, so that a run is done once.

Settings with their defaults, seed and budget, the preparation, the package's code and the packages that compute, and
the content of every file, folder and module that a setting names. What these import in turn is known only where it is
the package's own.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncgrpo.ablation.design.digest import digest_of
from asyncgrpo.ablation.design.values import changed, own_name, settled
from asyncgrpo.ablation.kinds import PACKAGES, kind_of

if TYPE_CHECKING:
    from asyncgrpo.ablation.design.arms import Run

KEY_LENGTH = 16
WITHOUT_EFFECT = ("run.output_dir", "run.resume", "run.allow_changes", "run.plan_from", "observe.")
"""Settings that no number depends on."""
WITH_FILES = ("model.", "lora.", "data.", "evaluation.", "environment.", "rewards")
"""Settings that may name files that numbers depend on, besides those of the kind's own section."""
WITHOUT_NUMBERS = ("cli/", "observe/page/", "ablation/findings/", "ablation/report/")
"""Folders of the package whose code no number of a run depends on."""
_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
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
        "code": code_digest(),
        "kind_code": _own_code(run.kind) if ":" in run.kind else None,
        "packages": versions_of(kind_of(run.kind).packages),
        "files": {
            name: _own_code(name)
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
    return {"path": path, "options": options, "code": _own_code(path)}


def preparation_key(path: str, options: Mapping[str, Any], seed: int) -> str:
    made_by = {"code": code_digest(), "packages": versions_of(PACKAGES)}
    return _digest({"prepare": preparation_content(path, options), "seed": seed, **made_by})


def file_digest(name: str) -> str | None:
    """Of a file, or `file.py:function`; of a folder, by names and contents; None: it is neither."""
    path = _existing(name)
    if path is None:
        return None
    if path.is_file():
        return _content_of(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return _digest([(str(file.relative_to(path)), _content_of(file)) for file in files])


def module_digest(path: str) -> str | None:
    """Of what `module:function` names: the module's file, or a package's folder; None: it is none."""
    if not _MODULE.fullmatch(path):
        return None
    try:
        spec = find_spec(path.partition(":")[0])
    except (ModuleNotFoundError, ValueError):  # of a package around it, or __main__
        return None
    if spec is None or spec.origin is None:
        return None
    return file_digest(str(Path(spec.origin).parent) if spec.submodule_search_locations else spec.origin)


@functools.cache
def code_digest() -> str:
    """Of the package's own code, without what only shows or is typed: numbers of a run do not come from there."""
    return _digest([(name, (_PACKAGE / name).read_text(encoding="utf-8")) for name in code_files()])


def code_files() -> list[str]:
    """Relative to the package."""
    names = sorted(file.relative_to(_PACKAGE).as_posix() for file in _PACKAGE.rglob("*.py"))
    return [name for name in names if not name.startswith(WITHOUT_NUMBERS)]


@functools.cache
def versions_of(packages: tuple[str, ...]) -> dict[str, str | None]:
    """None: it is not installed."""
    found: dict[str, str | None] = dict.fromkeys(packages)
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _own_code(name: str) -> str | None:
    return file_digest(name) or module_digest(name)


def _files(*values: Any) -> Iterator[str]:
    """Files, folders and modules that any text in the values names."""
    for value in values:
        if isinstance(value, Mapping):
            yield from _files(*value.values())
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield from _files(*value)
        elif isinstance(value, str) and (
            (("/" in value or "." in value) and _existing(value) is not None) or _MODULE.fullmatch(value)
        ):
            yield value


def _existing(name: str) -> Path | None:
    for candidate in (name, name.rpartition(":")[0]):
        if candidate and len(candidate) < 1024 and Path(candidate).exists():
            return Path(candidate)
    return None


def _content_of(file: Path) -> str:
    status = file.stat()
    return _hashed(file, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4096)
def _hashed(file: Path, modified: int, size: int) -> str:
    """A model is read once for all runs of a study: as long as time and size stay."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest(content: Any) -> str:
    return digest_of(content)[:KEY_LENGTH]
