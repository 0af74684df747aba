"""What a learner says of its memory."""

from pathlib import Path

import pytest
import torch
from learning_cases import make_config, random_groups

from asyncgrpo.learning.batching import make_batch, shards
from asyncgrpo.learning.client import largest_memory
from asyncgrpo.learning.learner import Learner
from asyncgrpo.learning.memory import StepMemory
from asyncgrpo.types import StepReport


def test_what_the_process_holds_is_counted_in_bytes() -> None:
    memory = StepMemory(torch.device("cpu"))
    before = memory.bytes()
    held = torch.ones(2**25)  # 128 MiB
    after = memory.bytes()
    assert before.keys() == after.keys() == {"resident"}
    assert after["resident"] - before["resident"] > 0.9 * held.nbytes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_peaks_of_a_device_are_of_the_step() -> None:
    device = torch.device("cuda")
    big = torch.ones(2**25, device=device)
    del big
    memory = StepMemory(device)
    small = torch.ones(2**20, device=device)
    held = memory.bytes()
    assert small.nbytes <= held["allocated"] < 2**27
    assert held["allocated"] <= held["reserved"]


def test_a_step_reports_it(tied_model: Path) -> None:
    config = make_config(str(tied_model))
    (shard,) = shards(make_batch(random_groups(groups=2), 0, config), config, 1)
    assert Learner(config, "cpu").train(shard).memory["resident"] > 2**20


def test_of_several_ranks_the_one_that_holds_most_counts() -> None:
    held = [{"resident": 5, "allocated": 9}, {"resident": 7, "allocated": 3}]
    reports = [StepReport(version=1, metrics={}, seconds={}, memory=memory) for memory in held]
    assert largest_memory(reports) == {"resident": 7, "allocated": 9}
