"""A matplotlib figure as SVG for a page: colours are the page's, so that it is right in light and in dark.

Drawn with stand-in colours, each of which becomes a variable of the style sheet; text stays text. The same results give
the same bytes: nothing is random, and there is no date.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DASHES", "DIM", "EDGE", "INK", "MARKERS", "SERIES", "SOFT", "draw", "series_style"]

INK, DIM, EDGE, CARD, SOFT = "#101112", "#202122", "#303132", "#404142", "#505152"
SERIES = tuple(f"#a{index}b{index}c{index}" for index in range(8))
_VARIABLES = {
    INK: "--text",
    DIM: "--dim",
    EDGE: "--edge",
    CARD: "--card",
    SOFT: "--soft",
    **{color: f"--series-{index}" for index, color in enumerate(SERIES)},
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
"""Of the second, third and fourth eight series."""
WIDTH, HEIGHT = 3.5, 2.45
"""Inches of one panel."""
MARGINS = (0.17, 0.175, 0.815, 0.795)
"""Of its axes: left, bottom, width and height, as shares of it."""
_STYLE = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.edgecolor": EDGE,
    "axes.labelcolor": DIM,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": EDGE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": DIM,
    "ytick.color": DIM,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.5,
}


def series_style(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of the series with this number: no two of 32 look alike, in colour or without."""
    return {
        "color": SERIES[index % len(SERIES)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(SERIES) % len(DASHES)],
    }


def draw(key: str, alt: str, paint: Callable[[Axes], None]) -> str:
    """An `<svg>` of what `paint` puts on one pair of axes. key: of this drawing on its page; alt: what it shows."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context({**_STYLE, "svg.hashsalt": key}):
        # Fixed margins: panels line up, and finding others takes ten times as long as drawing.
        made = Figure(figsize=(WIDTH, HEIGHT))
        FigureCanvasSVG(made)
        axes = made.add_axes(MARGINS)
        axes.spines[["top", "right"]].set_visible(False)
        paint(axes)
        file = io.StringIO()
        made.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_the_page(file.getvalue(), key, alt)


def _for_the_page(svg: str, key: str, alt: str) -> str:
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    # Ids are the page's, and two drawings may have the same path in them.
    mark = re.sub(r"[^A-Za-z0-9_-]", "_", key)
    svg = re.sub(r'( id="|href="#|url\(#)([A-Za-z])', rf"\g<1>{mark}-\g<2>", svg)
    svg = svg.replace(" font-family: 'DejaVu Sans';", "").replace("xlink:href", "href")
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, f"var({variable})")
    view = re.search(r'viewBox="([^"]*)"', svg)
    box = view[1] if view else f"0 0 {WIDTH * 72:g} {HEIGHT * 72:g}"
    head = f'<svg viewBox="{box}" role="img" aria-label="{escape(alt)}">'
    return re.sub(r"\s*\n\s*", "\n", head + svg[svg.index(">") + 1 :])
