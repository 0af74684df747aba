"""Weights & Biases; with WANDB_MODE=offline into files, which `wandb sync` sends later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncgrpo.observe.trackers.tracker import About

__all__ = ["WeightsAndBiases"]

_LOGIN_SECONDS = 20
"""A run does not wait for somebody to type a key."""


class WeightsAndBiases:
    replaces = False

    def open(self, about: About) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=about.project,
            name=about.name,
            id=about.identity,
            config=dict(about.config),
            dir=str(about.folder),
            resume="allow",
            settings=wandb.Settings(login_timeout=_LOGIN_SECONDS, console="off", quiet=True),  # the terminal is ours
        )

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
