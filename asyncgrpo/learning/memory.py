"""Memory of a learner rank: what a step needed of its device, and what its process holds."""

from __future__ import annotations

import psutil
import torch


class StepMemory:
    """Of one step, which begins now. On CUDA, peaks begin anew."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def bytes(self) -> dict[str, int]:
        """`resident`: of the process, now. On CUDA also the most since the step began that tensors took (`allocated`)
        and that was taken from the device for them (`reserved`); what NCCL and kernels take beside it is in neither."""
        held = {"resident": psutil.Process().memory_info().rss}
        if self._device.type == "cuda":
            held["allocated"] = torch.cuda.max_memory_allocated(self._device)
            held["reserved"] = torch.cuda.max_memory_reserved(self._device)
        return held
