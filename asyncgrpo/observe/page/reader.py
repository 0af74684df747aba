"""One run folder, asked by the page. Everything here blocks: it is called from a thread, one call at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from asyncgrpo.observe.page import facts, rollouts
from asyncgrpo.observe.page.complaints import Complaints
from asyncgrpo.observe.page.curves import Curves
from asyncgrpo.observe.page.timeline import Timeline
from asyncgrpo.observe.page.token_texts import TokenTexts
from asyncgrpo.observe.run_folder import RunFolder

__all__ = ["BadQuestion", "RunReader"]

Query = Mapping[str, str]


class BadQuestion(ValueError):
    """A query that cannot be understood; for the user."""


class RunReader:
    """Reads a run's folder and nothing else; keeps what it has read of files that grow.

    tokenizer: of the package `tokenizers`; None: that of the folder's final model, if it is there.
    """

    def __init__(self, folder: RunFolder, tokenizer: Any = None) -> None:
        self.folder = folder
        self._curves, self._timeline, self._complaints = Curves(folder), Timeline(folder), Complaints(folder)
        self._texts = TokenTexts(folder.model_dir / "tokenizer.json", tokenizer)
        self._answers: dict[str, Callable[[Query], dict[str, Any]]] = {
            "run": self._run,
            "series": self._series,
            "numbers": self._numbers,
            "timeline": self._window,
            "rollouts": self._rollouts,
            "group": self._group,
            "tokens": self._tokens,
            "config": lambda query: {"text": facts.settings_text(self.folder)},
            "warnings": self._warnings,
        }

    def answer(self, name: str, query: Query) -> dict[str, Any]:
        """Raises `rollouts.Missing` for what is not there, BadQuestion, and OSError when the disk refuses."""
        if name not in self._answers:
            raise rollouts.Missing(f"there is no api/{name}; there are {', '.join(self._answers)}")
        return self._answers[name](query)

    def _run(self, query: Query) -> dict[str, Any]:
        self._curves.update()
        newest, folder = self._curves.newest, self.folder
        files = (folder.metrics_file, folder.spans_file, folder.evaluation_file, folder.log_file, folder.summary_json)
        return {
            "name": folder.path.absolute().name,
            "revision": "-".join(str(file.stat().st_size) if file.exists() else "0" for file in files),
            "steps": self._curves.steps,
            "unreadable": self._curves.unreadable,
            **facts.state_of(folder, self._curves.steps),
            "first_time": self._curves.first.get("time"),
            "newest": newest,
        }

    def _series(self, query: Query) -> dict[str, Any]:
        self._curves.update()
        if "fields" not in query:
            return self._curves.series()
        try:
            names = msgspec.json.decode(query["fields"], type=list[str])
        except ValueError as error:
            raise BadQuestion(f"fields={query['fields']!r} is no list of names in JSON: {error}") from None
        return self._curves.series(names or self._curves.fields)

    def _numbers(self, query: Query) -> dict[str, Any]:
        self._curves.update()
        return {"numbers": self._curves.numbers()}

    def _warnings(self, query: Query) -> dict[str, Any]:
        self._complaints.update()
        return {"warnings": self._complaints.newest()}

    def _window(self, query: Query) -> dict[str, Any]:
        self._timeline.update()
        start, end = _number(query, "from"), _number(query, "to")
        if start is not None and end is not None and start >= end:
            raise BadQuestion(f"from={start:g} is not before to={end:g}")
        return self._timeline.window(start, end)

    def _rollouts(self, query: Query) -> dict[str, Any]:
        return rollouts.groups(self.folder, query["of"]) if "of" in query else rollouts.recorded(self.folder)

    def _group(self, query: Query) -> dict[str, Any]:
        return rollouts.group(self.folder, query.get("of", ""), _integer(query, "group"))

    def _tokens(self, query: Query) -> dict[str, Any]:
        group, sample = _integer(query, "group"), _integer(query, "sample")
        return rollouts.tokens(self.folder, query.get("of", ""), group, sample, self._texts)


def _number(query: Query, name: str) -> float | None:
    if name not in query:
        return None
    try:
        value = float(query[name])
    except ValueError:
        raise BadQuestion(f"{name}={query[name]!r} is no number") from None
    if not abs(value) < 1e12:  # NaN too
        raise BadQuestion(f"{name}={query[name]!r} is no time")
    return value


def _integer(query: Query, name: str) -> int:
    try:
        value = int(query[name])
    except (KeyError, ValueError):
        raise BadQuestion(f"{name}={query.get(name)!r} is no whole number") from None
    if abs(value) >= 2**62:
        raise BadQuestion(f"{name}={value} is too large")
    return value
