"""What a prediction of a run takes for something else than the run's settings say."""

from __future__ import annotations

from asyncgrpo.config import RunConfig

__all__ = ["assumptions"]

CARRIED_OVER = (
    "model.path",
    "model.dtype",
    "lora.lora_r",
    "data.dataset",
    "data.mix",
    "generation.num_generations",
    "generation.max_completion_length",
    "engines.devices",
    "engines.urls",
    "engines.dtype",
    "engines.max_num_seqs",
    "engines.enforce_eager",
    "replay.replay_fraction",
    "training.num_iterations",
    "learner.devices",
    "weights.transport",
    "weights.publish_concurrency",
)
"""Settings that shape a recorded pace: of these, a prediction for another run keeps what the recorded one had."""


def assumptions(config: RunConfig, recorded: RunConfig) -> tuple[str, ...]:
    """Of a run with `config`, predicted from the pace of one with `recorded`: `weights.in_flight were keep`, ..."""
    told: list[tuple[str, object]] = [] if config.weights.in_flight == "keep" else [("weights.in_flight", "keep")]
    told += [(key, was) for key in CARRIED_OVER if (was := _value(recorded, key)) != _value(config, key)]
    return tuple(f"{key} were {was}" for key, was in told)


def _value(config: RunConfig, key: str) -> object:
    section, _, field = key.partition(".")
    value: object = getattr(getattr(config, section), field)
    if key == "engines.urls":
        return len(config.engines.urls)  # which ports they had does not matter
    if key == "data.mix":
        return ", ".join(f"{entry.label} x {entry.weight:g}" for entry in config.data.mix)
    return ", ".join(value) if isinstance(value, tuple) else value
