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
        self._changed = asyncio.Condition()

    async def admit(self) -> tuple[int, int]:
        """Wait for a free slot. Returns group id and start version. Waits on once the run has enough groups."""
        async with self._changed:
            await self._changed.wait_for(self.contract.can_admit)
            return self.contract.admit()

    async def enter(self, group: Group) -> None:
        async with self._changed:
            self.contract.enter(group.group_id)
            self._groups[group.group_id] = group
            self._changed.notify_all()

    async def drop(self, group_id: int, reason: str) -> Group | None:
        """Returns the group if it was finished already."""
        async with self._changed:
            self.contract.drop(group_id, reason)
            self._changed.notify_all()
            return self._groups.pop(group_id, None)

    async def take(self) -> tuple[list[Group], list[Group]]:
        """Wait for the groups of one step. Returns them oldest first, and the over-stale groups dropped meanwhile."""
        dropped: list[Group] = []

        def ready() -> bool:
            for group_id in self.contract.over_stale_groups():
                self.contract.drop(group_id, "stale")
                dropped.append(self._groups.pop(group_id))
            if dropped:
                self._changed.notify_all()  # a drop frees a slot: the producer must hear of it
            return self.contract.choose() is not None

        async with self._changed:
            await self._changed.wait_for(ready)
            chosen = self.contract.choose()
            assert chosen is not None
            self.contract.take(chosen)
            return [self._groups.pop(group_id) for group_id in chosen], dropped

    async def consumed(self) -> int:
        async with self._changed:
            return self.contract.consumed()

    async def published(self, version: int) -> None:
        async with self._changed:
            self.contract.published(version)
            self._changed.notify_all()

    async def drain(self) -> list[Group]:
        """The run is over: drop what is still held. Returns the groups that had finished."""
        async with self._changed:
            for group_id in [*self.contract.blocking(), *self._groups]:
                self.contract.drop(group_id, "run_ended")
            left = list(self._groups.values())
            self._groups.clear()
            return left
