"""The ledger: every admitted group gets exactly one fate, and every reissued prompt comes again or is waited for. Pure.

Memory grows with the groups that are open, waited for or kept for replay, not with the run: what is settled is handed
to the caller as an entry, to be written down, and only counted here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, Self

from asyncgrpo.types import Fate, Group, LedgerEntry

__all__ = ["Ledger", "Outcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a group had come to when it met its fate; units as in `LedgerEntry`."""

    samples: int = 0
    tokens: int = 0
    tokens_max: int = 0
    reward_mean: float | None = None
    seconds: float = 0.0
    cut_samples: int = 0
    failed_samples: int = 0

    @classmethod
    def of(cls, group: Group, cut_samples: int = 0, failed_samples: int = 0) -> Self:
        """Of a group that finished and was scored."""
        lengths = [len(sample.completion.token_ids) for sample in group.samples]
        rewards = [sample.reward for sample in group.samples if not math.isnan(sample.reward)]
        return cls(
            samples=len(lengths),
            tokens=sum(lengths),
            tokens_max=max(lengths, default=0),
            reward_mean=math.fsum(rewards) / len(rewards) if rewards else None,
            seconds=group.entered_at - group.admitted_at,
            cut_samples=cut_samples,
            failed_samples=failed_samples,
        )


NOTHING = Outcome()


@dataclass(frozen=True, slots=True)
class _Open:
    prompt_id: str
    attempt: int
    start_version: int


class Ledger:
    """Of one run. Group ids count up in order of admission, as the contract gives them."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        """Settled groups by fate: `trained`, `dropped:<reason>`, `reissued:<reason>`."""
        self.uses = 0
        """Times that any group was trained, replays included."""
        self._open: dict[int, _Open] = {}
        self._open_prompts: set[str] = set()
        self._reissued: dict[str, int] = {}  # prompt waiting to come again -> its next attempt
        self._kept: dict[int, int] = {}  # trained group that may be replayed -> its uses
        self._next_id = 0

    @property
    def open(self) -> list[int]:
        """Groups without a fate, in order of admission."""
        return list(self._open)

    @property
    def waiting(self) -> dict[str, int]:
        """Reissued prompts that have not come again yet, each with the attempt that is due."""
        return dict(self._reissued)

    @property
    def kept(self) -> list[int]:
        """Trained groups that may be used again."""
        return list(self._kept)

    def admitted(self, group_id: int, prompt_id: str, attempt: int, start_version: int) -> None:
        """A group was started for a prompt. Raises ValueError for a group id that was given before, for a prompt that
        has a group in flight, and for an attempt that is not due."""
        if group_id < self._next_id:
            raise ValueError(f"group {group_id} was admitted before; the next id is {self._next_id}")
        if prompt_id in self._open_prompts:
            raise ValueError(f"prompt {prompt_id} has a group without a fate already")
        due = self._reissued.get(prompt_id, 0)
        if attempt != due:
            raise ValueError(f"prompt {prompt_id} was admitted for attempt {attempt}, but attempt {due} is due")
        self._reissued.pop(prompt_id, None)
        self._next_id = group_id + 1
        self._open[group_id] = _Open(prompt_id, attempt, start_version)
        self._open_prompts.add(prompt_id)

    def settle(
        self,
        group_id: int,
        fate: Fate,
        reason: str = "",
        *,
        version: int,
        outcome: Outcome = NOTHING,
        keep: bool = False,
    ) -> LedgerEntry:
        """Give a group its fate; version is the learner's. A trained group that goes to replay is kept.

        Raises ValueError for a group that has one already or was never admitted, for a drop or reissue without a
        reason, a trained group with one, and for keeping a group that was not trained.
        """
        if group_id not in self._open:
            was = "has a fate already" if group_id < self._next_id else "was never admitted"
            raise ValueError(f"group {group_id} {was}; it cannot be {fate}")
        if (fate == "trained") == bool(reason):
            raise ValueError(f"group {group_id}: fate {fate!r} with reason {reason!r}; only a trained group has none")
        if keep and fate != "trained":
            raise ValueError(f"group {group_id} is {fate}; only trained groups are kept for replay")
        opened = self._open.pop(group_id)
        self._open_prompts.discard(opened.prompt_id)
        self.totals[f"{fate}:{reason}" if reason else fate] += 1
        if fate == "trained":
            self.uses += 1
        if fate == "reissued":
            self._reissued[opened.prompt_id] = opened.attempt + 1
        if keep:
            self._kept[group_id] = 1
        return _entry(group_id, opened, fate, reason, version, outcome)

    def used(self, group_id: int) -> None:
        """A kept group was trained once more. Raises ValueError for a group that is not kept."""
        self._known(group_id)
        self._kept[group_id] += 1
        self.uses += 1

    def released(self, group_id: int) -> int:
        """A kept group will not be used again; returns how often it was. Raises ValueError if it is not kept."""
        self._known(group_id)
        return self._kept.pop(group_id)

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON has it."""
        return {
            "totals": dict(self.totals),
            "uses": self.uses,
            "open": [[group_id, *astuple(opened)] for group_id, opened in self._open.items()],
            "reissued": self.waiting,
            "kept": [[group_id, uses] for group_id, uses in self._kept.items()],
            "next_id": self._next_id,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on as the ledger that gave `state` would have."""
        self.totals, self.uses = Counter(state["totals"]), state["uses"]
        self._open = {group_id: _Open(*opened) for group_id, *opened in state["open"]}
        self._open_prompts = {opened.prompt_id for opened in self._open.values()}
        self._reissued = dict(state["reissued"])
        self._kept = {group_id: uses for group_id, uses in state["kept"]}
        self._next_id = state["next_id"]

    def _known(self, group_id: int) -> None:
        if group_id not in self._kept:
            raise ValueError(f"group {group_id} is not kept for replay")


def _entry(group_id: int, opened: _Open, fate: Fate, reason: str, version: int, outcome: Outcome) -> LedgerEntry:
    return LedgerEntry(
        group_id=group_id,
        prompt_id=opened.prompt_id,
        attempt=opened.attempt,
        fate=fate,
        reason=reason,
        start_version=opened.start_version,
        version=version,
        samples=outcome.samples,
        tokens=outcome.tokens,
        tokens_max=outcome.tokens_max,
        reward_mean=outcome.reward_mean,
        seconds=outcome.seconds,
        cut_samples=outcome.cut_samples,
        failed_samples=outcome.failed_samples,
        uses=1 if fate == "trained" else 0,
    )
