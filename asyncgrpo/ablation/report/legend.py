"""What a line's colour, mark and dashes stand for: the same in every drawing of a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncgrpo.ablation.report.drawing import series_style
from asyncgrpo.ablation.report.html import text

__all__ = ["legend", "series"]

Results = Mapping[str, Any]


def series(results: Results) -> list[str]:
    """Names in the order of the arms: the number of each is its colour everywhere."""
    return list(dict.fromkeys(arm["series"] for arm in results["arms"] if arm["in_grid"]))


def legend(results: Results) -> str:
    items = []
    for index, name in enumerate(series(results)):
        dash = ("", "8 2", "3 2", "7 2 2 2")[index // 8 % 4]
        shape = _MARKS[series_style(index)["marker"]]
        items.append(
            f'<li style="--c: var(--series-{index % 8})"><svg viewBox="0 0 30 12" class="key" aria-hidden="true">'
            f'<path d="M0 6H30" stroke-dasharray="{dash}"/>{shape}</svg>{text(name)}</li>'
        )
    return f'<ul class="legend" aria-label="Lines of the drawings">{"".join(items)}</ul>' if len(items) > 1 else ""


_MARKS = {
    "o": '<circle cx="15" cy="6" r="3.4"/>',
    "s": '<rect x="12" y="3" width="6" height="6"/>',
    "^": '<path class="mark" d="M15 2L19 9.5H11z"/>',
    "D": '<path class="mark" d="M15 1.5L19.5 6L15 10.5L10.5 6z"/>',
    "v": '<path class="mark" d="M15 10L19 2.5H11z"/>',
    "P": '<path class="mark" d="M13.5 2h3v2.5H19v3h-2.5V10h-3V7.5H11v-3h2.5z"/>',
    "X": '<path class="mark" d="M11 4l2-2 2 2 2-2 2 2-2 2 2 2-2 2-2-2-2 2-2-2 2-2z"/>',
    "*": '<path class="mark" d="M15 1l1.4 3.4 3.6.2-2.8 2.3 1 3.6L15 8.5l-3.2 2 1-3.6L10 4.6l3.6-.2z"/>',
}
