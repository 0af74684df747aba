"""What rewards share that ask for verdicts which may not come: the time of a call, and what becomes of lost ones.

Invariant: an answer without a verdict is never a 0 for that.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal

from pydantic import PositiveFloat

from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards.builtin.base import Builtin, arguments

OnLost = Literal["none", "error"]
LogMetric = Callable[[str, float], None]

WITHIN_CALL = 0.8
"""Share of a call's timeout after which what has no verdict yet is given up, so that the call itself is in time."""
NO_LIMIT = 1e6
"""Seconds."""

logger = logging.getLogger(__name__)
lost_answers: Counter[str] = Counter()
"""Answers without a verdict since the process started, by why: `late`, `died`, `memory` and others."""


@arguments
class Judged(Builtin):
    """A reward whose verdicts may be lost."""

    on_lost: OnLost = "none"
    """An answer that gets no verdict is not scored (`none`), or fails the call (`error`: on_error)."""
    call_timeout: PositiveFloat | None = None
    """Seconds after which what has no verdict is given up. Absent: 0.8 of the function's timeout."""

    def bound(self, *, max_completion_length: int, timeout: float) -> Builtin:
        if self.call_timeout is not None and self.call_timeout >= timeout:
            raise ConfigError(
                f"reward {self.short!r}: call_timeout={self.call_timeout:g} s is not less than the function's timeout "
                f"of {timeout:g} s, after which its call has failed; lower it, leave it out, or raise the timeout"
            )
        return self.filled(call_timeout=WITHIN_CALL * timeout)

    def until(self) -> float:
        """When a call that begins now gives up, of the monotonic clock."""
        return time.monotonic() + (self.call_timeout or NO_LIMIT)

    def tell_lost(self, lost: Counter[str], limits: str, log_metric: LogMetric | None) -> None:
        """Count them, by why, if there are any. limits: that they had. Raises RuntimeError if `on_lost` is `error`."""
        if not lost:
            return
        lost_answers.update(lost)
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(lost.items()))
        what = f"{lost.total()} answers without a verdict ({kinds}; {limits})"
        if log_metric is not None:
            log_metric(f"{self.short}/lost", float(lost.total()))
        if self.on_lost == "error":
            raise RuntimeError(what)
        logger.warning("reward %s: %s, not scored; %d in all", self.short, what, lost_answers.total())
