"""How late tokens are trained, exactly: the versions that are still there to sample from, and which of them does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from asyncgrpo.ablation.kinds.settings import Histogram, InjectedSection
from asyncgrpo.ablation.randomness import Purpose, random_of
from asyncgrpo.errors import ConfigError
from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.observe.run_folder import RunFolder

RECORDED = "staleness_tokens/"

Weights = Mapping[str, Tensor]


class Delays:
    """k of every group: one number, or drawn from what a run recorded. Raises ConfigError for a run that did not.

    Invariant: a group's k depends on seed, version and place alone, so that all arms of a seed have the same.
    """

    def __init__(self, section: InjectedSection, seed: int) -> None:
        self._seed = seed
        recorded = section.staleness
        shares = recorded_shares(recorded) if isinstance(recorded, Histogram) else {recorded: 1.0}
        self._values, self._shares = np.array(list(shares)), np.array(list(shares.values()))

    @property
    def most(self) -> int:
        return int(self._values.max())

    def of_groups(self, count: int, version: int) -> list[int]:
        """Versions that sample the groups of the step from `version`: `max(0, version - k)`."""
        random = random_of(Purpose.DELAYS, self._seed, version=version)
        delays = random.choice(self._values, size=count, p=self._shares)
        return np.maximum(version - delays, 0).tolist()  # type: ignore[no-any-return]


class Past:
    """Weights of the current version and of `most` before it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._weights: dict[int, Weights] = {}

    def keep(self, version: int, weights: Weights) -> None:
        """Copies them. Versions come in their order."""
        self._weights[version] = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self._weights.pop(version - self._most - 1, None)

    def of(self, version: int) -> Weights:
        return self._weights[version]


def recorded_shares(section: Histogram) -> dict[int, float]:
    """Share of the trained tokens by their staleness, over all steps of a run. Raises ConfigError, RunFolderError."""
    path = Path(section.histogram)
    records = read_metrics(RunFolder(path).metrics_file if path.is_dir() else path)
    tokens: Counter[int] = Counter()
    for record in records:
        for name, value in record.items():
            if name.startswith(RECORDED):
                tokens[int(name.removeprefix(RECORDED))] += value
    total = sum(tokens.values())
    if not total:
        raise ConfigError(
            f"injected.staleness.histogram = {section.histogram!r}: no step there has {RECORDED}<versions>; name the "
            "folder of a run that has trained"
        )
    return {staleness: tokens[staleness] / total for staleness in sorted(tokens)}
