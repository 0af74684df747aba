"""One finding of `asyncgrpo doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: Status
    detail: str
    remedy: str = ""
    """What to do; empty when all is well."""

    def __str__(self) -> str:
        text = f"{self.status:<4}  {self.name}: {self.detail}"
        return f"{text}  → {self.remedy}" if self.remedy else text
