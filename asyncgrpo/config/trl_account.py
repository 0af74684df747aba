"""What became of TRL's arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Translation"]


@dataclass(slots=True)
class Translation:
    sections: dict[str, Any] = field(default_factory=dict)
    """What the arguments say, and TRL's defaults that mean something else here; loads as a configuration unless `mend`
    says otherwise."""
    translated: dict[str, str] = field(default_factory=dict)
    """Argument to where it is now."""
    needless: dict[str, str] = field(default_factory=dict)
    """Argument that asks for nothing, or for what is so anyway, and why."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Argument to what to do instead."""
    written: dict[str, Any] = field(default_factory=dict)
    """Dotted key to TRL's default, which stands in `sections` although it was not given."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """Dotted key to TRL's default, where ours is another and none is given."""
    mend: list[str] = field(default_factory=list)
    """What keeps the configuration from loading."""
    notes: list[str] = field(default_factory=list)
