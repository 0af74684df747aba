"""The bounded rollout buffer: the staleness contract with groups in it and waiting around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from asyncgrpo.buffer.contract import StalenessContract
from asyncgrpo.types import Group


class Untrained(NamedTuple):
    """A finished group that will not be trained."""

    group: Group
    fate: str
    """`dropped:<reason>` or `reissued:<reason>`."""


class RolloutBuffer:
    """One producer loop admits and enters, one consumer takes. All calls come from the same event loop.

    `admit` and `take` wait for as long as it takes: their callers set the deadline.

    reissue: asked, with the reason, of every finished group whose prompt is to come again whether it does; one that has
    failed too often does not, and its group is dropped.
    """

    def __init__(
        self, contract: StalenessContract, reissue: Callable[[Group, str], bool] = lambda group, reason: True
    ) -> None:
        self.contract = contract
        self._reissue = reissue
        self._groups: dict[int, Group] = {}
        self._untrained: list[Untrained] = []
        self._changed = asyncio.Condition()

    async def admit(self) -> tuple[int, int]:
        """Wait for a free slot. Returns group id and start version. Waits on once the run has enough groups."""
        async with self._changed:
            await self._changed.wait_for(self.contract.can_admit)
            return self.contract.admit()

    async def enter(self, group: Group) -> bool:
        """A group has finished. False: it was uniform and is dropped, as `StalenessContract.enter` says."""
        masks = self.contract.over_stale == "mask"  # finding the newest token costs a walk over all of them
        filters = self.contract.refill_budget > 0
        async with self._changed:
            waits = self.contract.enter(
                group.group_id,
                group.oldest_version,
                group.newest_version if masks else None,
                is_uniform=filters and group.is_uniform,
            )
            if waits:
                self._groups[group.group_id] = group
            else:
                self._untrained.append(Untrained(group, "dropped:uniform"))
            self._changed.notify_all()
            return waits

    async def drop(self, group_id: int, reason: str, *, reissue: bool = False) -> None:
        """End a group that did not finish, at once; then tell who waits. Reissued: its prompt comes again."""
        self.contract.drop(group_id, reason, reissue=reissue)  # before any wait: a checkpoint may be taken during it
        async with self._changed:
            self._changed.notify_all()

    async def take(self) -> list[Group]:
        """Wait for the groups of one step; oldest first. Over-stale groups are ended meanwhile."""
        chosen: list[int] | None = None

        def ready() -> bool:
            nonlocal chosen
            self._end_over_stale()
            chosen = self.contract.choose()
            return chosen is not None

        async with self._changed:
            await self._changed.wait_for(ready)
            assert chosen is not None
            self.contract.take(chosen)
            self._changed.notify_all()  # fewer groups are unfinished now: max_unfinished_groups may let others start
            return [self._groups.pop(group_id) for group_id in chosen]

    async def consumed(self) -> int:
        """The step over the taken groups is done. Returns the learner's new version."""
        async with self._changed:
            return self.contract.consumed()

    async def published(self, version: int) -> None:
        """Every engine serves `version`."""
        async with self._changed:
            self.contract.published(version)
            self._changed.notify_all()

    def collect_untrained(self) -> list[Untrained]:
        """Finished groups that ended untrained since the last call, with their fate."""
        untrained, self._untrained = self._untrained, []
        return untrained

    def state(self) -> dict[str, Any]:
        """What `restore` needs beside the contract and the groups of `held`, as JSON has it."""
        return {"untrained": [[group.group_id, fate] for group, fate in self._untrained]}

    def held(self) -> list[Group]:
        """Groups that wait to be trained, and those that ended untrained and were not collected yet."""
        return [*self._groups.values(), *(group for group, _ in self._untrained)]

    def restore(self, state: Mapping[str, Any], held: Iterable[Group]) -> None:
        """Go on as the buffer that gave both would have, over a contract that was restored before. Raises ValueError
        for other groups than the contract knows."""
        groups = {group.group_id: group for group in held}
        self._untrained = [Untrained(groups.pop(group_id), fate) for group_id, fate in state["untrained"]]
        if len(groups) != self.contract.buffered:
            raise ValueError(f"{len(groups)} groups were saved, but the contract has {self.contract.buffered}")
        self._groups = groups

    async def drain(self) -> None:
        """The run is over: drop what is still held."""
        async with self._changed:
            for group_id in [*self.contract.blocking(), *self._groups]:
                self.contract.drop(group_id, "run_ended")
            self._untrained += [Untrained(group, "dropped:run_ended") for group in self._groups.values()]
            self._groups.clear()

    def give_back(self, reason: str) -> None:
        """No finished group will be trained; their prompts come again."""
        for group_id in list(self._groups):
            self._end(group_id, reason, comes_again=True)

    def _end_over_stale(self) -> None:
        for group_id in self.contract.over_stale_groups():
            self._end(group_id, "stale", comes_again=self.contract.over_stale == "drop_reissue")
            self._changed.notify_all()  # the producer waits for the slot

    def _end(self, group_id: int, reason: str, *, comes_again: bool) -> None:
        group = self._groups.pop(group_id)
        reissue = comes_again and self._reissue(group, reason)
        self.contract.drop(group_id, reason, reissue=reissue)
        self._untrained.append(Untrained(group, f"{'reissued' if reissue else 'dropped'}:{reason}"))
