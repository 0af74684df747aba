"""trackio: on this machine, or where TRACKIO_SPACE_ID or TRACKIO_SERVER_URL say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncgrpo.observe.trackers.tracker import About

__all__ = ["Trackio"]


class Trackio:
    replaces = False

    def open(self, about: About) -> None:
        import trackio

        # A run of the same name in another folder is another run; only what we began ourselves is gone on with.
        self._run: Any = trackio.init(
            project=about.project,
            name=about.name,
            config=dict(about.config),
            resume="allow" if about.is_resumed else "never",
        )

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
