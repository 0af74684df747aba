"""Long output: through the user's pager where there is a terminal, as plain text elsewhere."""

from __future__ import annotations

import os
import pydoc
import sys
from collections.abc import Iterable

from rich.console import Console, RenderableType

__all__ = ["PLAIN_WIDTH", "show"]

PLAIN_WIDTH = 160
"""Columns of output that goes to a file or a program; COLUMNS overrides it."""


def show(parts: Iterable[RenderableType]) -> None:
    """Print to stdout, paged if it is a terminal. Colours only where the pager passes them on."""
    if not sys.stdout.isatty():
        width = None if "COLUMNS" in os.environ else PLAIN_WIDTH
        console = Console(width=width, highlight=False)
        for part in parts:
            console.print(part)
        return
    # F: no paging of what fits on the screen, X: it stays there, R: colours. A user's own choice is kept.
    options = os.environ.setdefault("LESS", "FRX")
    console = Console(highlight=False, color_system="auto" if "R" in options else None)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    pydoc.pager(captured.get())
