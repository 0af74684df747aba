"""How a machine is divided among runs."""

import pytest

from asyncgrpo.ablation.machine import slots
from asyncgrpo.config.resolve import Machine
from asyncgrpo.errors import ConfigError


def parts(parallel: int, cores: int, gpus: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    machine = Machine(cores=tuple(range(cores)), gpus=tuple(range(gpus)), fast_bf16=False)
    return [(slot.cores, slot.gpus) for slot in slots(parallel, machine)]


def test_cores_in_equal_parts_the_larger_first() -> None:
    assert parts(1, 2, 0) == [((0, 1), ())]
    assert parts(3, 8, 0) == [((0, 1, 2), ()), ((3, 4, 5), ()), ((6, 7), ())]


def test_gpus_where_there_are_enough() -> None:
    assert parts(2, 4, 4) == [((0, 1), (0, 1)), ((2, 3), (2, 3))]
    assert parts(2, 2, 1) == [((0,), ()), ((1,), ())]  # shared


def test_a_run_needs_a_core() -> None:
    with pytest.raises(ConfigError, match="--parallel 3: a run needs a core, and there are 2; give at most that"):
        parts(3, 2, 0)
