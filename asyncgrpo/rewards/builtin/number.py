"""Is the number that a completion ends with the right one? For data like GSM8K."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from asyncgrpo.rewards.builtin.base import Builtin, Completions, arguments, as_text, text_of

_SEPARATORS = re.compile(r"(?<=\d)(?:\{,\}|\\,|\\!|,|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
"""Between thousands, as people, LaTeX and typesetters write them."""
_DECIMAL = r"(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,2}(?![\w.]))?"
_SIGN = r"(?:(?<![\w.)\]}])-\$?)?"
_ALONE = r"(?<![\w^.])(?<!\^\{)(?<!_\{)"
"""Not inside a word, an exponent of a unit as in cm^2, or an index."""
_NUMBER = re.compile(
    rf"(?P<sign>{_SIGN})(?:"
    rf"\\[dt]?frac\{{(?P<over>-?{_DECIMAL})\}}\{{(?P<under>{_DECIMAL})\}}"
    rf"|{_ALONE}(?:(?P<base>{_DECIMAL})(?:\^|\*\*)\{{?(?P<power>-?\d+)\}}?"
    rf"|(?P<top>{_DECIMAL})\s?/\s?(?P<bottom>{_DECIMAL})(?!\s?/)"
    rf"|(?P<plain>{_DECIMAL})))"
)
_LARGEST_POWER, _MOST_DIGITS = 64, 1000
_BOXED = re.compile(r"\\boxed\s*\{|\\fbox\s*\{")


def numbers_in(text: str) -> list[Fraction | None]:
    """The numbers of a text: decimal or with an exponent, with thousands separators, a fraction, or a power of two
    numbers; None for one that has no value, or too many digits."""
    return [_value(match) for match in _NUMBER.finditer(_SEPARATORS.sub("", text.replace("\u2212", "-")))]


def answer_of(text: str) -> Fraction | None:
    """The number that a text gives as its answer: the first one after its last ####, else the last one in its last box,
    else its last. A box that holds no number gives none, nor does a line after #### without one."""
    _, marked, rest = text.rpartition("####")
    if marked:
        found = numbers_in(rest.strip().split("\n")[0])
        return found[0] if found else None
    inside = _last_box(text)
    found = numbers_in(text if inside is None else inside)
    return found[-1] if found else None


@arguments
class NumberMatch(Builtin):
    """1 where the completion's number equals the right one, else 0; None for a row whose answer has no number."""

    short = "number_match"

    answer_column: str = "solution"
    """The dataset's column with the right answer: a number, or a text that gives one, as GSM8K's `answer`."""

    def __call__(self, *, completions: Completions, **columns: Any) -> list[float | None]:
        pairs = zip(completions, self.answers(columns), strict=True)
        return [self._score(text_of(completion), answer) for completion, answer in pairs]

    def _score(self, text: str, answer: Any) -> float | None:
        right = answer_of(as_text(answer, self.answer_column) or "")
        return None if right is None else float(answer_of(text) == right)


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > _MOST_DIGITS:
        return None
    parts = match.groupdict()
    sign = -1 if parts["sign"] else 1
    if parts["plain"]:
        return sign * Fraction(parts["plain"])
    if parts["power"]:
        base, power = Fraction(parts["base"]), int(parts["power"])
        if abs(power) > _LARGEST_POWER or (power < 0 and not base):
            return None
        return sign * base**power
    top, bottom = Fraction(parts["over"] or parts["top"]), Fraction(parts["under"] or parts["bottom"])
    return sign * top / bottom if bottom else None


def _last_box(text: str) -> str | None:
    """What stands in the last \\boxed{…}, or of one that is not closed what follows; None without one."""
    starts = [match.end() for match in _BOXED.finditer(text)]
    if not starts:
        return None
    depth = 1
    for end in range(starts[-1], len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return text[starts[-1] : end]
    return text[starts[-1] :]
