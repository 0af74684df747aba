import os

import pytest

from asyncgrpo.errors import ConfigError
from asyncgrpo.learning.devices import check_device, cores, visible_gpus


def test_cores_of_a_device() -> None:
    ours = sorted(os.sched_getaffinity(0))
    assert cores("cpu") is None
    assert cores("auto") is None
    assert cores("cuda:1") is None
    assert cores(f"cpu:{ours[0]}") == {ours[0]}
    if ours[:2] == [0, 1]:
        assert cores("cpu:0-1") == cores("cpu:0,1") == {0, 1}


@pytest.mark.parametrize("device", ["cpu:999", "cpu:0-999", "cpu:3-2"])
def test_cores_we_were_not_given_are_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=f"'{device}' is not within the cores"):
        cores(device)


@pytest.mark.parametrize("device", ["", "gpu", "cuda:0,1", "cpu:", "cpu:a", "cuda:-1"])
def test_what_is_not_one_device_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="is not one device"):
        check_device(device)


def test_a_rank_sees_only_its_gpu() -> None:
    assert visible_gpus("cuda:1", {}) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert visible_gpus("cuda", {}) == {"CUDA_VISIBLE_DEVICES": "0"}
    assert visible_gpus("cuda:1", {"CUDA_VISIBLE_DEVICES": "4,GPU-ab"}) == {"CUDA_VISIBLE_DEVICES": "GPU-ab"}
    assert visible_gpus("cpu:0-3", {"CUDA_VISIBLE_DEVICES": "4"}) == {}
    assert visible_gpus("auto", {}) == {}
    with pytest.raises(ConfigError, match="shows 1 GPUs"):
        visible_gpus("cuda:1", {"CUDA_VISIBLE_DEVICES": "4"})
