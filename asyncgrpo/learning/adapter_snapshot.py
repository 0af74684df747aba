"""Write the adapters alone, as an immutable snapshot: a folder in peft's format that appears complete or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from peft import PeftModel

from asyncgrpo.config.adapter import ADAPTER_WEIGHTS
from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.lora import adapter_tensors, save_adapter_config
from asyncgrpo.learning.snapshot import write_safetensors


def write_adapter(path: str, adapted: PeftModel, dtype: torch.dtype, base: str) -> int:
    """Write what trains, as `dtype`, to a new folder `path`; returns the bytes of its tensors.

    base: path or name of the base model. Raises LearnerError if that cannot be done.
    """
    part = Path(f"{path}.part")
    try:
        part.mkdir(mode=0o700)
        size = write_safetensors(str(part / ADAPTER_WEIGHTS), adapter_tensors(adapted), dtype, {"format": "pt"})
        save_adapter_config(adapted, part, base)
        os.rename(part, path)
    except OSError as error:
        raise LearnerError(f"cannot write the adapter {path}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return size
