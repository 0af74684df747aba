"""Groups by version, oldest first."""

import pytest

from asyncgrpo.buffer.by_version import GroupsByVersion


def test_groups_come_by_version_then_by_id() -> None:
    groups = GroupsByVersion()
    for group_id, version in ((9, 2), (4, 1), (10, 1), (1, 2)):
        groups.add(group_id, version)
    assert list(groups.oldest_first()) == [4, 10, 1, 9]
    assert list(groups.oldest_first(before=2)) == [4, 10]
    assert list(groups.oldest_first(before=1)) == []
    assert (groups.versions(), groups.count(1), groups.count(2), groups.count(3)) == ([1, 2], 2, 2, 0)
    assert (len(groups), 9 in groups, 2 in groups, groups[10]) == (4, True, False, 1)


def test_what_is_taken_out_is_forgotten() -> None:
    groups = GroupsByVersion()
    groups.add(0, 5)
    groups.add(1, 6)
    assert groups.pop(0) == 5
    assert (groups.versions(), list(groups.oldest_first()), len(groups)) == ([6], [1], 1)
    for gone in (groups.pop, groups.__getitem__):
        with pytest.raises(KeyError):
            gone(0)
