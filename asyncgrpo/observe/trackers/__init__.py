"""Hands the numbers of every step to TensorBoard, trackio or Weights & Biases, which can do a run no harm."""

from asyncgrpo.observe.trackers.trackers import Trackers, check_installed

__all__ = ["Trackers", "check_installed"]
