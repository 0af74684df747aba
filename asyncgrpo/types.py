"""The small carriers that stages hand to each other. No torch, no behaviour beyond derived facts.

Prompt ──generation──▶ Completion ──rewards──▶ Sample ┐
                                                      ├─▶ Group ──buffer──▶ Batch ──learner──▶ StepReport
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

FinishReason = Literal["stop", "length"]
Fate = Literal["trained", "dropped", "reissued"]
InFlight = Literal["keep", "abort_resume", "finish"]
"""What becomes of the requests under way when a version is published (weights.in_flight)."""
EjectionReason = Literal["died", "silent", "unwell", "foreign_weights", "publish", "requests"]
"""Why an engine gets no more work: its process ended; a look at it was not answered in time; it failed looks in a row;
it serves weights that this run did not give it; a version did not reach it; requests of several groups failed."""
SURVIVORS = 2
"""Samples that a group needs: an advantage needs a comparison."""
Message = Mapping[str, Any]
PromptText = str | Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row of the dataset in one epoch."""

    prompt_id: str
    """Stable over resumes: `"{epoch}-{row}"`."""
    epoch: int
    """Pass over its dataset."""
    row: int
    prompt: PromptText
    """As the dataset gives it: a string, or a list of chat messages."""
    token_ids: tuple[int, ...]
    """What the engine is asked to continue."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The row's other columns, handed to reward functions."""
    source: str | None = None
    """Name of its dataset, where several are mixed."""
    opening: PromptText | None = None
    """What an environment put behind the dataset's own prompt: the end of `prompt`."""

    @property
    def is_conversational(self) -> bool:
        return not isinstance(self.prompt, str)

    def opened(self, opening: PromptText) -> PromptText:
        """The prompt with `opening` behind it: text behind the text, or behind that of the last message; or messages.

        Raises ValueError where they do not go together.
        """
        if isinstance(self.prompt, str):
            if not isinstance(opening, str):
                raise ValueError("messages cannot be put behind a text prompt")
            return self.prompt + opening
        if not isinstance(opening, str):
            return [*self.prompt, *opening]
        *before, last = self.prompt
        if not isinstance(last.get("content"), str):
            raise ValueError("text can only be put behind a message that is text")
        return [*before, {**last, "content": last["content"] + opening}]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What follows one prompt: T tokens, sampled by engines, or given by an environment or a tool between its turns.

    Any sequences may be given; they are kept as read-only arrays. Equal if every field is, element by element; not
    hashable. A token that was given has a log-probability of 0 and the version of the last sampled one before it, so
    that the oldest and newest version are those of sampled tokens. Raises ValueError where that is not so.
    """

    token_ids: np.ndarray  # [T] int32
    behaviour_logprobs: np.ndarray  # [T] float32
    """Natural log, of the distribution that was sampled from (temperature applied)."""
    versions: np.ndarray  # [T] int32
    """Policy version that sampled each token."""
    finish_reason: FinishReason
    """`length`: cut off where no more tokens were allowed."""
    engine: str
    started_at: float = 0.0
    finished_at: float = 0.0
    """Seconds of the orchestrator's monotonic clock, around its requests."""
    sampled: np.ndarray = None  # type: ignore[assignment]  # [T] bool
    """True where an engine sampled the token. Absent: everywhere."""

    def __post_init__(self) -> None:
        is_all_sampled = self.sampled is None
        if is_all_sampled:
            object.__setattr__(self, "sampled", np.ones(len(self.token_ids), dtype=bool))
        for name, dtype in _COMPLETION_DTYPES:
            values = np.asarray(getattr(self, name), dtype=dtype)
            values.flags.writeable = False
            object.__setattr__(self, name, values)
        n = len(self.token_ids)
        if not n == len(self.behaviour_logprobs) == len(self.versions) == len(self.sampled):
            raise ValueError(
                f"completion has {n} tokens, {len(self.behaviour_logprobs)} log-probabilities, "
                f"{len(self.versions)} versions and {len(self.sampled)} marks of what was sampled"
            )
        if not (is_all_sampled or self.sampled.all()):
            self._check_given()

    def _check_given(self) -> None:
        if not self.sampled[0]:
            raise ValueError(
                "the first token of a completion was not sampled; what is given first belongs to the prompt"
            )
        given = ~self.sampled
        last_sampled = np.maximum.accumulate(np.where(self.sampled, np.arange(len(self)), 0))
        for name, expected in (("behaviour_logprobs", 0.0), ("versions", self.versions[last_sampled])):
            wrong = given & (getattr(self, name) != expected)
            if wrong.any():
                at = int(np.argmax(wrong))
                raise ValueError(f"token {at} was not sampled, but its {name} entry is {getattr(self, name)[at]}")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def sampled_tokens(self) -> int:
        """How many of its tokens engines sampled."""
        return int(np.count_nonzero(self.sampled))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Completion):
            return NotImplemented
        return (
            (self.finish_reason, self.engine, self.started_at, self.finished_at)
            == (other.finish_reason, other.engine, other.started_at, other.finished_at)
            and np.array_equal(self.token_ids, other.token_ids)
            and np.array_equal(self.behaviour_logprobs, other.behaviour_logprobs)
            and np.array_equal(self.versions, other.versions)
            and np.array_equal(self.sampled, other.sampled)
        )

    __hash__ = None  # type: ignore[assignment]


_COMPLETION_DTYPES = (
    ("token_ids", np.int32),
    ("behaviour_logprobs", np.float32),
    ("versions", np.int32),
    ("sampled", np.bool_),
)


class Ask(Protocol):
    """Has an engine go on from token ids, for at most so many tokens (absent: `generation.max_completion_length`)."""

    async def __call__(self, token_ids: Sequence[int], max_tokens: int | None = None) -> Completion: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One sample as it came out: a completion, or the trajectory of an environment."""

    completion: Completion
    prompt: Prompt
    """What was asked; other than the dataset's where an environment opened the conversation."""
    messages: tuple[Message, ...] | None = None
    """Of a trajectory, all that was said after the prompt. Absent: the completion is the one answer."""
    reward: float | None = None
    """The environment's own; None if it gave none."""
    turns: int = 1
    """Answers of the model."""


Play = Callable[[Prompt, Ask], Awaitable[Played]]
"""How one sample comes about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One scored completion of a group."""

    completion: Completion
    text: str
    rewards: Mapping[str, float | None]
    """Per reward function; None where a function does not apply."""
    reward: float
    """Weighted sum; NaN when no function applied."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What reward functions logged of it, by column; values as JSON has them."""

    @property
    def oldest_version(self) -> int:
        return int(self.completion.versions.min())

    @property
    def newest_version(self) -> int:
        return int(self.completion.versions.max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The `num_generations` samples of one prompt: one unit of admission, training and fate."""

    group_id: int
    """Admission number, unique in a run."""
    prompt: Prompt
    samples: tuple[Sample, ...]
    start_version: int
    """Version the engines served at admission: no token is older."""
    admitted_at: float
    entered_at: float
    """Seconds of the orchestrator's monotonic clock."""
    logged: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Metrics that reward functions logged: sum and number of the values, by name."""

    @property
    def oldest_version(self) -> int:
        """Version of its oldest token: what its staleness counts from."""
        return min(sample.oldest_version for sample in self.samples)

    @property
    def newest_version(self) -> int:
        return max(sample.newest_version for sample in self.samples)

    @property
    def is_uniform(self) -> bool:
        """No two scored samples differ in `reward`: none has an advantage over another.

        With a baseline within the group (`group_mean`, `leave_one_out`) then all advantages are 0, and the policy term
        has no gradient; with `batch_mean` or `none` it has one. Of the weighted sum only: with `normalize_then_sum`,
        samples of equal sum may differ in their parts, and with `soft_punish_cache` in length.
        """
        return len({sample.reward for sample in self.samples if not math.isnan(sample.reward)}) < 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A group that is trained once more."""

    group: Group
    advantages: np.ndarray  # [samples] float32
    """Those of the step that trained it first."""
    uses: int
    """Steps that trained it before this one, at least 1."""
    probability_weight: float
    """Factor of its loss that makes up for how likely it was to be drawn."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replayable:
    """A group that was trained and may be trained again."""

    group: Group
    advantages: np.ndarray  # [samples] float32
    """Those of the step that trained it first."""
    uses: int
    """Steps that have trained it, at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """What became of one group: one admission of one prompt."""

    group_id: int
    prompt_id: str
    attempt: int
    """How often the prompt was reissued before."""
    fate: Fate
    reason: str
    """Why it was dropped or reissued: `stale`, `uniform`, `failed`, `run_ended`, …; empty if trained."""
    start_version: int
    """Version the engines served at admission."""
    version: int
    """The learner's when the group met its fate; of a trained one, the version that trained it."""
    samples: int = 0
    """That finished and were scored; 0 if the group did not get so far."""
    tokens: int = 0
    """Of all its samples, those between turns (which nobody sampled) included: what `max_completion_length` bounds."""
    tokens_max: int = 0
    """Of its longest sample."""
    reward_mean: float | None = None
    """Over its scored samples; None without any."""
    seconds: float = 0.0
    """From admission to the end of scoring."""
    cut_samples: int = 0
    """Cancelled because enough others had finished."""
    failed_samples: int = 0
    """Left out, or what its group failed by."""
    uses: int = 0
    """Steps that trained it, replays included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples of one step, ragged and flat. S samples, P their prompt tokens, C their completion tokens."""

    version: int
    """Policy version the learner has when it trains this batch."""
    prompt_tokens: np.ndarray  # [P] int32
    prompt_lengths: np.ndarray  # [S] int32
    completion_tokens: np.ndarray  # [C] int32
    completion_lengths: np.ndarray  # [S] int32
    behaviour_logprobs: np.ndarray  # [C] float32
    token_versions: np.ndarray  # [C] int32
    loss_mask: np.ndarray  # [C] bool: True where a token is trained; never where it was given, not sampled
    denominator_tokens: np.ndarray  # [S] int32: trained tokens, and those left out as over-stale
    advantages: np.ndarray  # [S] float32
    is_scored: np.ndarray  # [S] bool: False where no reward function applied; the advantage is then 0
    sample_weights: np.ndarray  # [S] float32: 1, or what makes up for drawing the group by priority
    uses: np.ndarray  # [S] int32: steps that trained the sample before this one; 0 where it is fresh
    group_ids: np.ndarray  # [S] int32

    def __len__(self) -> int:
        return len(self.prompt_lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedUpdate:
    """An optimiser update that was not made, on any rank, because its loss or gradient is not finite."""

    update: int
    """Which of the step's, from 1."""
    minibatch: int
    """What it was made of: see `learning.batching.Shard.minibatch_of_sample`."""
    loss: float
    """Over all ranks."""
    gradient_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What the learner says of one step."""

    version: int
    """Policy version after the step."""
    metrics: Mapping[str, float]
    seconds: Mapping[str, float]
    """Wall-clock by part: `proximal`, `forward_backward`, `optimiser`, `total`."""
    memory: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Bytes of the rank that holds most, by kind: `resident`; on CUDA `allocated` and `reserved`, peaks of the step."""
    skipped: tuple[SkippedUpdate, ...] = ()
    proximal_logprobs: np.ndarray | None = field(default=None, compare=False, repr=False)
    """Of every completion token of the batch, in its order, as the proximal policy has them; NaN of those that were not
    trained. float32. None: the objective computes none (`objective.proximal_anchor`)."""

    @property
    def updates_skipped(self) -> int:
        """Updates that were not made because a number was not finite."""
        return len(self.skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What the learner says of a checkpoint that it has taken over."""

    version: int
    """Policy version it has now."""
    updates: int
    """Optimiser updates made since the run started."""
    remarks: tuple[str, ...] = ()
    """What will not be exactly as in a run that never stopped, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One immutable set of weights that engines can load."""

    version: int
    path: str
    bytes: int
    seconds: float


def encode_version(incarnation: str, version: int) -> str:
    """Name of a policy version on the wire.

    The incarnation tells apart versions of different runs, and versions retrained after a crash.
    """
    return f"{incarnation}:{version}"


def decode_version(text: str, incarnation: str) -> int:
    """Inverse of `encode_version`. Raises ValueError for a foreign name or another incarnation's version."""
    head, _, tail = text.partition(":")
    if not (head and tail.removeprefix("-").isdigit()):
        raise ValueError(f"weight version {text!r} was not published by asyncgrpo")
    if head != incarnation:
        raise ValueError(f"weight version {text!r} belongs to incarnation {head}, this run is {incarnation}")
    return int(tail)
