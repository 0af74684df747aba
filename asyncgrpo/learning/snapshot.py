"""Write one immutable snapshot: a safetensors file that appears complete or not at all.

Tensors lie in the order given, which is the model's: all tensors of a layer are adjacent, and engines buffer per layer.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.tensor_file import TensorFile


def write_safetensors(path: str, tensors: Mapping[str, Tensor], dtype: torch.dtype, metadata: Mapping[str, str]) -> int:
    """Write `tensors`, floating point ones as `dtype`, to `path`; returns the file's bytes.

    Raises LearnerError if that cannot be done, for want of room before anything is written.
    """
    content = TensorFile(tensors, metadata, dtype)
    part = f"{path}.part"
    try:
        _check_room(Path(path).parent, content.size)
        with open(part, "wb") as file:
            content.write(file)
        os.replace(part, path)
    except OSError as error:
        raise LearnerError(f"cannot write the snapshot {path}: {error}") from error
    finally:
        Path(part).unlink(missing_ok=True)
    return content.size


def _check_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise LearnerError(
            f"a snapshot of {size:,} bytes does not fit into {folder} with {free:,} bytes free; make room "
            "(in a container: docker run --shm-size=…), or set weights.shared_memory_dir to a larger file system"
        )
