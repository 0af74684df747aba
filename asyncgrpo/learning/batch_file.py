"""A batch on disk, to be studied or trained again: safetensors, readable by anything. No pickle, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.protocol import BATCH_ARRAYS
from asyncgrpo.observe.files import replacing
from asyncgrpo.types import Batch

OF_TOKENS = {
    "prompt_tokens": "prompt_lengths",
    **dict.fromkeys(("completion_tokens", "behaviour_logprobs", "token_versions", "loss_mask"), "completion_lengths"),
}
"""Arrays with a value per token, and what says how many; all others have one per sample."""


def write_batch(path: Path, batch: Batch, notes: Mapping[str, Any] | None = None) -> None:
    """Put a batch at `path`, whole or not at all. `notes` is anything JSON can hold. Raises RunFolderError."""
    arrays = {name: np.ascontiguousarray(getattr(batch, name)) for name in BATCH_ARRAYS}
    metadata = {"version": str(batch.version), "notes": json.dumps(dict(notes or {}))}
    with replacing(path) as file:
        file.write(safetensors.numpy.save(arrays, metadata))


def read_batch(path: Path) -> tuple[Batch, dict[str, Any]]:
    """Inverse of `write_batch`: the batch, bit for bit, and its notes. Raises LearnerError for anything else."""
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        batch = Batch(version=int(metadata["version"]), **arrays)
        notes = dict(json.loads(metadata["notes"]))
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise LearnerError(f"{path} is not a saved batch: {error!r}") from error
    for name in BATCH_ARRAYS:
        expected = int(arrays[OF_TOKENS[name]].sum()) if name in OF_TOKENS else len(batch)
        if arrays[name].shape != (expected,):
            raise LearnerError(f"{path}: {name} has shape {arrays[name].shape}, expected ({expected},)")
    return batch, notes
