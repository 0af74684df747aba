"""Every error asyncgrpo raises on purpose.

    AsyncGRPOError
    ├── ConfigError            a setting, refused before anything is loaded
    ├── DataError              a dataset or a row of it
    ├── RunFolderError         the output folder: exists, locked, not writable
    ├── EngineError            a generation server
    │   ├── EngineStartError       never became healthy
    │   ├── EngineRejected         it answered 4xx: repeating the request will not help
    │   └── EngineUnavailable      refused, dropped, 5xx or too late: another try may help
    │       ├── EngineSilent           it took a control call and did not answer in time
    │       └── ForeignWeights         it serves other weights than this run last gave it
    ├── PublishError           a policy version did not reach an engine
    │   └── ProbeMismatch          engine and learner disagree about the same weights
    ├── RewardError            a reward function raised, timed out or returned nonsense
    │   └── GroupUnscored          the same, but only the group is dropped: `on_error` is `drop_group`, or it is
    │                              `drop_sample` and fewer samples are left than a group needs
    ├── EnvironmentFailure     an environment or a tool raised, was late or answered nonsense: its sample has failed
    ├── LearnerError           the learner failed or its process ended
    │   └── UpdatesNotFinite       it gave up, as loss or gradient were not finite too often in a row: the run diverged
    ├── CheckpointError        one cannot be saved, or none can be resumed from
    ├── EvaluationError        an evaluation took too long, or scored nothing
    ├── GuardError             a guard saw the run go wrong, and wants it to end or to go back
    └── StallError             nothing moved for longer than the configured deadline

The command line prints `str(error)` on one line and exits with `exit_code`; a traceback is only for bugs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

INTERRUPTED = 130
"""Exit code of what a signal stopped, as shells have it."""

EXIT_CODES: Mapping[int, str] = {
    0: "done",
    1: "a bug, with a traceback; or what was asked for does not hold: a check of `doctor`, a step of `replay`, a "
    "sample of `rollouts`, an argument that `config --from-trl` left out, a figure of `ablate`; or nobody reads the "
    "output any more",
    2: "an argument, a setting, the data or the run folder is refused, or the folder cannot be written",
    3: "an engine did not start, or no engine is left",
    4: "a policy version did not reach an engine, or engine and learner disagree about the same weights",
    5: "a reward function failed",
    6: "the learner failed, or its process ended",
    7: "nothing moved for longer than a deadline",
    8: "no checkpoint can be gone on from, or one cannot be read",
    9: "a guard ended the run",
    10: "an evaluation failed",
    11: "an environment or a tool failed",
    12: "the learner gave up: loss or gradient were not finite too often in a row",
    INTERRUPTED: "stopped by a signal: Ctrl-C, SIGTERM or SIGHUP",
}
"""Of the command line; each error below has its `exit_code` among them."""


class AsyncGRPOError(Exception):
    """Base of all. The message names the offending value and the remedy."""

    exit_code = 1

    def saying(self, message: str) -> Self:
        """The same error with another message: of its type, which may take more than that to be made, and with all
        that it carries."""
        other = type(self).__new__(type(self), message)
        other.__dict__.update(self.__dict__)
        return other


class ConfigError(AsyncGRPOError):
    exit_code = 2


class DataError(AsyncGRPOError):
    exit_code = 2


class RunFolderError(AsyncGRPOError):
    exit_code = 2


class EngineError(AsyncGRPOError):
    exit_code = 3
    engine: str | None = None
    """Name of the engine that failed a request; absent where it was none, or is gone."""
    sent_at: float | None = None
    """When that request was sent, by the monotonic clock."""


class EngineStartError(EngineError):
    pass


class EngineRejected(EngineError):
    pass


class EngineUnavailable(EngineError):
    pass


class EngineSilent(EngineUnavailable):
    pass


class ForeignWeights(EngineUnavailable):
    pass


class PublishError(AsyncGRPOError):
    exit_code = 4


class ProbeMismatch(PublishError):
    pass


class RewardError(AsyncGRPOError):
    exit_code = 5


class GroupUnscored(RewardError):
    pass


class LearnerError(AsyncGRPOError):
    exit_code = 6


class UpdatesNotFinite(LearnerError):
    exit_code = 12


class StallError(AsyncGRPOError):
    exit_code = 7


class CheckpointError(AsyncGRPOError):
    exit_code = 8


class EvaluationError(AsyncGRPOError):
    exit_code = 10


class GuardError(AsyncGRPOError):
    exit_code = 9
    wants_rollback = False


class RollbackWanted(GuardError):
    wants_rollback = True


class EnvironmentFailure(AsyncGRPOError):
    exit_code = 11
