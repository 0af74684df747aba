"""Groups by a policy version: counted and walked oldest first without looking at all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

__all__ = ["GroupsByVersion"]


class GroupsByVersion:
    """A set of group ids, each with a version. Versions at one time are few (about S + 1), groups may be many."""

    def __init__(self) -> None:
        self._version: dict[int, int] = {}
        self._groups: dict[int, set[int]] = {}

    def __len__(self) -> int:
        return len(self._version)

    def __contains__(self, group_id: int) -> bool:
        return group_id in self._version

    def __getitem__(self, group_id: int) -> int:
        """The group's version. Raises KeyError for a group that is not here."""
        return self._version[group_id]

    def add(self, group_id: int, version: int) -> None:
        self._version[group_id] = version
        self._groups.setdefault(version, set()).add(group_id)

    def pop(self, group_id: int) -> int:
        """Take a group out; returns its version. Raises KeyError for a group that is not here."""
        version = self._version.pop(group_id)
        self._groups[version].discard(group_id)
        if not self._groups[version]:
            del self._groups[version]
        return version

    def versions(self) -> list[int]:
        """Versions that any group has, oldest first."""
        return sorted(self._groups)

    def count(self, version: int) -> int:
        return len(self._groups.get(version, ()))

    def oldest_first(self, before: float = math.inf) -> Iterator[int]:
        """Ids of groups older than version `before`, by version, then in order of admission. Sorts only what the
        caller walks to."""
        for version in self.versions():
            if version >= before:
                return
            yield from sorted(self._groups[version])
