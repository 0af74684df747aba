"""Pieces of HTML. Every figure is a `<data>` that says where in results.json it is from, for `check` to find."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["details", "estimate", "figure", "grid", "num", "p_value", "pill", "section", "table", "text", "words"]

MINUS = "\u2212"


def text(value: object) -> str:
    return escape(str(value), quote=True)


def num(where: str, value: float | int | str | None, form: str = ".3f") -> str:
    """A figure, as `form` shows it; a dash where there is none. where: its path in results.json."""
    if value is None:
        return '<span class="none">\u2013</span>'
    shown = value if isinstance(value, str) else "∞" if math.isinf(value) else format(value, form)
    return f'<data data-of="{text(where)}" value="{text(value)}">{text(shown.replace("-", MINUS))}</data>'


def estimate(where: str, found: Mapping[str, Any], form: str = ".3f") -> str:
    """A mean with its interval under it, or why there is none."""
    if found["mean"] is None:
        return f'<span class="none">{text(found["note"] or "no value")}</span>'
    mean = num(f"{where}.mean", found["mean"], form)
    if found["low"] is None:
        return f'{mean} <small class="interval">{text(found["note"])}</small>'
    if found["low"] == found["high"]:
        return f'{mean} <small class="interval">all equal</small>'
    which = " (t)" if found.get("interval") == "t" else ""
    low, high = num(f"{where}.low", found["low"], form), num(f"{where}.high", found["high"], form)
    return f'{mean} <small class="interval">[{low}, {high}]{which}</small>'


def p_value(where: str, value: float | None) -> str:
    if value is None:
        return num(where, None)
    shown = "&lt; 0.001" if value < 0.001 else f"{value:.3f}"
    return f'<data data-of="{text(where)}" value="{value}">{shown}</data>'


def pill(kind: str, said: str) -> str:
    """A word with a colour; the word alone says it too."""
    return f'<span class="pill {kind}">{text(said)}</span>'


def words(paragraph: str, kind: str = "") -> str:
    return f"<p{_of_class(kind)}>{text(paragraph)}</p>"


def section(name: str, title: str, *body: str) -> str:
    """With an anchor of that name."""
    inner = "\n".join(part for part in body if part)
    head = f'<section id="{name}" aria-labelledby="{name}-title">\n<h2 id="{name}-title">{text(title)}</h2>'
    return f"{head}\n{inner}\n</section>"


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Cells are HTML; the first of a row names it. It scrolls sideways by itself where it is too wide."""
    top = "".join(f'<th scope="col">{text(name)}</th>' for name in head)
    body = "\n".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}"><table{_of_class(kind)}>'
        f"<caption>{text(caption)}</caption>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def details(summary: str, *body: str, opened: bool = False) -> str:
    inner = "\n".join(body)
    return f"<details{' open' if opened else ''}><summary>{text(summary)}</summary>\n{inner}\n</details>"


def figure(title: str, drawing: str) -> str:
    """One panel: its title, then the drawing, which has its own alternative text."""
    return f"<figure><figcaption>{text(title)}</figcaption>{drawing}</figure>"


def grid(panels: Sequence[str], legend: str = "") -> str:
    return f'{legend}<div class="panels">\n' + "\n".join(panels) + "\n</div>"


def _of_class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
