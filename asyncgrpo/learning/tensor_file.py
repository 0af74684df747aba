"""Write safetensors tensor by tensor: the library's own writer holds a second copy of everything it writes.

Tensors lie in the order given.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import BinaryIO

import torch
from torch import Tensor

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
"""What the format calls a type."""

ALIGNMENT = 8


class TensorFile:
    """Tensors as one safetensors file, floating point ones as `dtype`, or as they are if it is None."""

    def __init__(
        self, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], dtype: torch.dtype | None = None
    ) -> None:
        self._tensors, self._dtype = tensors, dtype
        self._header, body = self._describe(metadata)
        self.size = len(self._header) + body
        """Bytes of the whole file."""

    def write(self, file: BinaryIO) -> None:
        """Holds one tensor more in memory at a time, if that. Raises OSError."""
        file.write(self._header)
        for tensor in self._tensors.values():
            stored = tensor.detach().to(self._stored(tensor)).cpu().contiguous()
            file.write(stored.reshape(-1).view(torch.uint8).numpy().data)

    def _describe(self, metadata: Mapping[str, str]) -> tuple[bytes, int]:
        entries: dict[str, object] = {"__metadata__": dict(metadata)}
        offset = 0
        for name, tensor in self._tensors.items():
            stored = self._stored(tensor)
            end = offset + tensor.numel() * stored.itemsize
            entries[name] = {"dtype": DTYPE_NAMES[stored], "shape": list(tensor.shape), "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        return struct.pack("<Q", len(text)) + text, offset

    def _stored(self, tensor: Tensor) -> torch.dtype:
        return self._dtype if self._dtype is not None and tensor.is_floating_point() else tensor.dtype
