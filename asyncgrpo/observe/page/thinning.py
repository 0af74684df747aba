"""Numbers of any many rows in few points, in one pass. Pure.

Invariant: the points of a field have, taken together, its exact least and largest value and its exact mean; memory does
not grow with the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["Thinned", "plain"]

Columns = Mapping[str, np.ndarray]


class Thinned:
    """Rows in at most `most` points of `width` rows each, a power of two that doubles whenever the points are full.

    Fields may appear at any time; NaN stands for no value. `most` is even.
    """

    def __init__(self, most: int) -> None:
        if most < 2 or most % 2:
            raise ValueError(f"most={most}: give an even number of points")
        self._most = most
        self.rows, self.width = 0, 1
        self._fields: dict[str, _Field] = {}

    @property
    def fields(self) -> list[str]:
        """In the order in which they appeared."""
        return list(self._fields)

    def extend(self, columns: Columns, rows: int) -> None:
        """Add `rows` rows; columns: [rows] float64 by field."""
        while self.rows + rows > self._most * self.width:
            self.width *= 2
            for field in self._fields.values():
                field.halve()
        points = np.arange(self.rows, self.rows + rows) // self.width
        for name, values in columns.items():
            if name not in self._fields:
                self._fields[name] = _Field(self._most)
            self._fields[name].add(points, values)
        self.rows += rows

    @property
    def points(self) -> int:
        return -(-self.rows // self.width)

    def of(self, name: str, *, absent_is_zero: bool = False, digits: int = 6) -> dict[str, list[float | None]]:
        """`mean` of each point, and `min` and `max` where a point is several rows; None where there is no value.

        absent_is_zero: rows without a value count as 0. digits: that are kept.

        Raises KeyError for a field that never was.
        """
        field, points = self._fields[name], self.points
        count, total = field.count[:points], field.total[:points]
        least, largest = field.least[:points], field.largest[:points]
        if absent_is_zero:
            rows = np.full(points, self.width)
            rows[-1:] = self.rows - (points - 1) * self.width
            least = np.where(count < rows, np.fmin(least, 0.0), least)
            largest = np.where(count < rows, np.fmax(largest, 0.0), largest)
            count = rows
        mean = np.divide(total, count, out=np.full(points, np.nan), where=count > 0)
        if self.width == 1:
            return {"mean": plain(mean, digits)}
        return {"mean": plain(mean, digits), "min": plain(least, digits), "max": plain(largest, digits)}

    def extremes(self, name: str) -> tuple[float | None, float | None]:
        """Least and largest value of all rows. Raises KeyError for a field that never was."""
        field = self._fields[name]
        if not field.count.any():
            return None, None
        return float(np.nanmin(field.least)), float(np.nanmax(field.largest))


class _Field:
    def __init__(self, points: int) -> None:
        self.count = np.zeros(points, dtype=np.int64)
        self.total = np.zeros(points)
        self.least = np.full(points, np.nan)
        self.largest = np.full(points, np.nan)

    def add(self, points: np.ndarray, values: np.ndarray) -> None:
        has_value = np.isfinite(values)
        points, values = points[has_value], values[has_value]
        np.add.at(self.count, points, 1)
        np.add.at(self.total, points, values)
        np.fmin.at(self.least, points, values)
        np.fmax.at(self.largest, points, values)

    def halve(self) -> None:
        """Two points become one."""
        for name, fold, empty in (
            ("count", np.add, 0),
            ("total", np.add, 0.0),
            ("least", np.fmin, np.nan),
            ("largest", np.fmax, np.nan),
        ):
            old: np.ndarray = getattr(self, name)
            folded = np.full_like(old, empty)
            folded[: len(old) // 2] = fold(old[0::2], old[1::2])
            setattr(self, name, folded)


def plain(values: np.ndarray, digits: int = 6) -> list[Any]:
    """For JSON: no more digits than a chart can show, and None for what is no number."""
    values = np.asarray(values, dtype=np.float64)
    has_digits = np.isfinite(values) & (values != 0.0)
    chosen = values[has_digits]
    # Powers of ten up to 22 are exact, and so is what is divided by one or multiplied with it.
    shift = np.clip(digits - 1 - np.floor(np.log10(np.abs(chosen))), -300, 300)
    up, down = 10.0 ** np.maximum(shift, 0.0), 10.0 ** np.maximum(-shift, 0.0)
    written = np.zeros(len(values), dtype=object)
    written[has_digits] = np.rint(chosen * up / down) / up * down
    written[~np.isfinite(values)] = None
    return [value if value is None else float(value) for value in written.tolist()]
