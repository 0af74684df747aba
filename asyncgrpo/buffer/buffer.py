"""The bounded rollout buffer: the staleness contract with groups in it and waiting around it."""

from __future__ import annotations

import asyncio

from asyncgrpo.buffer.contract import StalenessContract
from asyncgrpo.types import Group


class RolloutBuffer:
    """One producer loop admits and enters, one consumer takes. All calls come from the same event loop."""

    def __init__(self, contract: StalenessContract) -> None:
        self.contract = contract
        self._groups: dict[int, Group] = {}
        self._dropped: list[tuple[Group, str]] = []
        self._changed = asyncio.Condition()

    async def admit(self) -> tuple[int, int]:
        """Wait for a free slot. Returns group id and start version. Waits on once the run has enough groups."""
        async with self._changed:
            await self._changed.wait_for(self.contract.can_admit)
            return self.contract.admit()

    async def enter(self, group: Group) -> None:
        async with self._changed:
            self.contract.enter(group.group_id, group.oldest_version)
            self._groups[group.group_id] = group
            self._changed.notify_all()

    async def drop(self, group_id: int, reason: str) -> None:
        """End a group that did not finish."""
        async with self._changed:
            self.contract.drop(group_id, reason)
            self._changed.notify_all()

    async def take(self) -> list[Group]:
        """Wait for the groups of one step; oldest first. Over-stale groups are dropped meanwhile."""

        def ready() -> bool:
            for group_id in self.contract.over_stale_groups():
                self.contract.drop(group_id, "stale")
                self._dropped.append((self._groups.pop(group_id), "stale"))
                self._changed.notify_all()  # a drop frees a slot: the producer must hear of it
            return self.contract.choose() is not None

        async with self._changed:
            await self._changed.wait_for(ready)
            chosen = self.contract.choose()
            assert chosen is not None
            self.contract.take(chosen)
            return [self._groups.pop(group_id) for group_id in chosen]

    async def consumed(self) -> int:
        async with self._changed:
            return self.contract.consumed()

    async def published(self, version: int) -> None:
        async with self._changed:
            self.contract.published(version)
            self._changed.notify_all()

    def collect_dropped(self) -> list[tuple[Group, str]]:
        """Finished groups that were dropped since the last call, with the reason."""
        dropped, self._dropped = self._dropped, []
        return dropped

    async def drain(self) -> None:
        """The run is over: drop what is still held."""
        async with self._changed:
            for group_id in [*self.contract.blocking(), *self._groups]:
                self.contract.drop(group_id, "run_ended")
            self._dropped += [(group, "run_ended") for group in self._groups.values()]
            self._groups.clear()
