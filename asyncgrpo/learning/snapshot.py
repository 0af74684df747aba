"""Write one immutable snapshot: a safetensors file that appears complete or not at all.

The format is written here, tensor by tensor, because safetensors' own writer holds a second copy of the whole model.
Tensors lie in the order given, which is the model's: all tensors of a layer are adjacent, and engines buffer per layer.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from asyncgrpo.errors import LearnerError

DTYPE_NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ALIGNMENT = 8


def write_safetensors(path: str, tensors: Mapping[str, Tensor], dtype: torch.dtype, metadata: Mapping[str, str]) -> int:
    """Write `tensors`, floating point ones as `dtype`, to `path`; returns the file's bytes.

    Raises LearnerError if that cannot be done, for want of room before anything is written.
    """
    header, body = _header(tensors, dtype, metadata)
    size = len(header) + body
    part = f"{path}.part"
    try:
        _check_room(Path(path).parent, size)
        with open(part, "wb") as file:
            file.write(header)
            for tensor in tensors.values():
                file.write(_bytes(tensor, dtype))
        os.replace(part, path)
    except OSError as error:
        raise LearnerError(f"cannot write the snapshot {path}: {error}") from error
    finally:
        Path(part).unlink(missing_ok=True)
    return size


def _check_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise LearnerError(
            f"a snapshot of {size:,} bytes does not fit into {folder} with {free:,} bytes free; make room "
            "(in a container: docker run --shm-size=…), or set weights.shared_memory_dir to a larger file system"
        )


def _header(tensors: Mapping[str, Tensor], dtype: torch.dtype, metadata: Mapping[str, str]) -> tuple[bytes, int]:
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, tensor in tensors.items():
        stored = _stored_dtype(tensor, dtype)
        end = offset + tensor.numel() * stored.itemsize
        entries[name] = {"dtype": DTYPE_NAMES[stored], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text, offset


def _stored_dtype(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    return dtype if tensor.is_floating_point() else tensor.dtype


def _bytes(tensor: Tensor, dtype: torch.dtype) -> memoryview:
    stored = tensor.to(_stored_dtype(tensor, dtype)).cpu().contiguous()
    return stored.reshape(-1).view(torch.uint8).numpy().data
