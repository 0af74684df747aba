"""The random generators of a rank's process: torch (and its GPU), numpy, Python. All of it as tensors and JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

STATE = "state"
"""Key of the metadata that holds what is no tensor."""


def capture(device: torch.device) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file. Draws nothing."""
    version, words, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    tensors = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
        "python": torch.tensor(words, dtype=torch.int64),
    }
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    rest = {
        "numpy": [numpy_state["state"]["pos"], numpy_state["has_gauss"], numpy_state["gauss"]],
        "python": [version, gauss],
    }
    return tensors, {STATE: json.dumps(rest)}


def restore(device: torch.device, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Inverse of `capture`. Raises KeyError, ValueError, TypeError or RuntimeError for what it did not write."""
    rest = json.loads(metadata[STATE])
    position, has_gauss, gauss = rest["numpy"]
    version, python_gauss = rest["python"]
    of_torch, of_numpy = tensors["torch"].clone(), tensors["numpy"].numpy().astype(np.uint32)
    of_python = (version, tuple(tensors["python"].tolist()), python_gauss)
    # All of it is there: only now is anything changed.
    torch.set_rng_state(of_torch)
    np.random.set_state(("MT19937", of_numpy, position, has_gauss, gauss))
    random.setstate(of_python)
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"].clone(), device)


def reseed(*numbers: int) -> None:
    """Seed all of them from `numbers`: the same give the same, others give others."""
    torch_seed, numpy_seed, python_seed = np.random.SeedSequence(numbers).generate_state(3)
    torch.manual_seed(int(torch_seed))
    np.random.seed(int(numpy_seed))
    random.seed(int(python_seed))
