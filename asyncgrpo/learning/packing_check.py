"""Which packing a model computes correctly, found by trying it.

Recurrent layers, softmaxes with extras, and code that does not hand arguments on to its attention would silently mix
samples. So a few packed rows are compared with plain ones, once, on the model itself.
"""

from __future__ import annotations

import logging

import torch
from transformers import PreTrainedModel

from asyncgrpo.learning.attention.interface import PACKED, recorded_windows, register
from asyncgrpo.learning.packing import Packing
from asyncgrpo.learning.packing_trial import Outcome, Trial, deviation, run

logger = logging.getLogger(__name__)

KNOWN_LAYERS = {"full_attention", "sliding_attention"}
LARGEST_DEVIATION = 1e-5
"""Relative, whatever the noise is."""
LARGEST_NOISE = 3.0
"""Deviation allowed, in multiples of that between two plain attention functions: rounding, in the type computed in."""


def choose_packing(model: PreTrainedModel, device: torch.device, trial: Trial) -> Packing:
    """The fastest packing that is exact. Switches `model` to packed attention, or with `padded` leaves it its own.

    Says once, as a warning, why it is not `shared`.
    """
    own = model.config._attn_implementation
    reasons = []
    other_layers = sorted(set(getattr(model.config, "layer_types", None) or ()) - KNOWN_LAYERS)
    if other_layers:
        reasons.append(f"it has layers of type {', '.join(other_layers)}")
    elif not model._supports_flash_attn:  # which, like ours, has no mask: only windows
        reasons.append("transformers has no attention without masks for it")
    else:
        expected, limits = _expected(model, device, trial)
        register()
        model.set_attn_implementation(PACKED)
        choices: tuple[Packing, ...] = ("shared", "separate")
        for packing in choices:
            reason = _why_not(model, trial, packing, expected, limits)
            if reason is None:
                _tell(model, packing, reasons)
                return packing
            reasons.append(f"{packing}: {reason}")
        model.set_attn_implementation(own)
    _tell(model, "padded", reasons)
    return "padded"


def _expected(model: PreTrainedModel, device: torch.device, trial: Trial) -> tuple[Outcome, tuple[float, float]]:
    """What plain rows give, and how far packed ones may be from it: hidden states and gradient."""
    own = model.config._attn_implementation
    expected = run(model, trial, "padded", device)
    try:
        model.set_attn_implementation("sdpa" if own == "eager" else "eager")
        noise = deviation(run(model, trial, "padded", device), expected)
    except Exception as error:  # a model with a single attention function: held to what float32 gives
        logger.debug("%s has no second attention function: %s", type(model).__name__, error)
        noise = (0.0, 0.0)
    finally:
        model.set_attn_implementation(own)
    return expected, (_limit(noise[0]), _limit(noise[1]))


def _limit(noise: float) -> float:
    return max(LARGEST_DEVIATION, LARGEST_NOISE * noise)


def _why_not(
    model: PreTrainedModel, trial: Trial, packing: Packing, expected: Outcome, limits: tuple[float, float]
) -> str | None:
    try:
        with recorded_windows() as windows:
            actual = run(model, trial, packing, expected.hidden_NH.device)
    except Exception as error:  # whatever a model's code raises on an attention it does not expect
        return f"{type(error).__name__}: {error}"
    sliding = _sliding_layers(model)
    if len(windows) != sliding:  # samples here are shorter than most windows: without them hidden states are the same
        return f"{len(windows)} of {sliding} layers with a sliding window pass it on to their attention"
    for name, found, limit in zip(("hidden states", "gradients"), deviation(actual, expected), limits, strict=True):
        if not found <= limit:
            return f"{name} differ by {found:.2g}, relative to their length; rounding explains {limit:.2g}"
    return None


def _sliding_layers(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    layer_types: list[str] | None = getattr(config, "layer_types", None)
    if layer_types is not None:
        return layer_types.count("sliding_attention")
    return config.num_hidden_layers if getattr(config, "sliding_window", None) else 0


def _tell(model: PreTrainedModel, packing: Packing, reasons: list[str]) -> None:
    if reasons:
        logger.warning("%s: samples are %s (%s)", type(model).__name__, _CONSEQUENCE[packing], "; ".join(reasons))


_CONSEQUENCE: dict[Packing, str] = {
    "separate": "packed into rows, but each computes its prompt anew",
    "padded": "padded to the longest, and each computes its prompt anew",
}
