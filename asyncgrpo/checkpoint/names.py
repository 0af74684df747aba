"""Names of checkpoint folders, and which of them stay. Pure.

| name                            | what it is                                                            |
|---------------------------------|-----------------------------------------------------------------------|
| step-00000012                   | the checkpoint after step 12, complete when it appeared               |
| .step-00000012.tmp-9f2c41d0     | being written, or left by a kill while it was                         |
| .step-00000012.old-9f2c41d0     | making room for another one of the same step                          |
| .step-00000012.gone-9f2c41d0    | being removed                                                         |
| step-00000012.rewound-1         | after the step that a resume began from: of a course no longer taken  |
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection

__all__ = ["aside_name", "parse_aside", "parse_rewound", "parse_step", "rewound_name", "step_name", "to_remove"]

_STEP = re.compile(r"step-(\d{8,})")
_ASIDE = re.compile(r"\.step-(\d{8,})\.(tmp|old|gone)-[0-9a-f]{8}")
_REWOUND = re.compile(r"step-(\d{8,})\.rewound-\d+")


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def parse_step(name: str) -> int | None:
    """The step of a checkpoint's name; None for any other name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and step_name(int(match[1])) == name else None


def aside_name(step: int, kind: str) -> str:
    """A new name for a folder that no reader is to see. kind: `tmp`, `old` or `gone`."""
    return f".{step_name(step)}.{kind}-{secrets.token_hex(4)}"


def parse_aside(name: str) -> tuple[int, str] | None:
    """Step and kind of such a name; None for any other."""
    match = _ASIDE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def rewound_name(step: int, taken: Collection[str]) -> str:
    number = 1
    while (name := f"{step_name(step)}.rewound-{number}") in taken:
        number += 1
    return name


def parse_rewound(name: str) -> int | None:
    match = _REWOUND.fullmatch(name)
    return int(match[1]) if match else None


def to_remove(
    steps: Collection[int],
    *,
    complete: Collection[int],
    lost: Collection[int],
    keep_last: int | None,
    keep_every: int | None,
) -> set[int]:
    """Of `steps`, those that `keep_last` (None: any number of) newer complete ones outdo, and those that are lost; but
    never one that `keep_every` divides."""

    def is_outdone(step: int) -> bool:
        return keep_last is not None and sum(other > step for other in complete) >= keep_last

    removable = (step for step in steps if not (keep_every and step % keep_every == 0))
    return {step for step in removable if step in lost or is_outdone(step)}
