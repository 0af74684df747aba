"""Names of devices: what they are, which are refused, and what a process is shown of the GPUs."""

import pytest

from asyncgrpo.config.devices import check_devices, cores_of, gpu_environment, gpus_of, visible_gpus
from asyncgrpo.errors import ConfigError


def test_cores_and_gpus_of_a_device() -> None:
    assert cores_of("cpu:0-3,6") == (0, 1, 2, 3, 6)
    assert [cores_of(device) for device in ("cpu", "cpu:auto", "auto", "cuda:1")] == [()] * 4
    assert (gpus_of("cuda:0,1"), gpus_of("cuda:2"), gpus_of("cuda")) == ((0, 1), (2,), (0,))
    assert [gpus_of(device) for device in ("cpu", "cpu:1", "auto")] == [()] * 3


@pytest.mark.parametrize("device", ["auto", "cpu", "cpu:auto", "cpu:0", "cpu:0-3,6", "cuda", "cuda:1", "cuda:0,1"])
def test_devices(device: str) -> None:
    check_devices("engines.devices", [device])


@pytest.mark.parametrize("device", ["", "gpu", "cpu:", "cpu:a", "cpu:0-", "cuda:", "cuda:-1", "cuda:0-1", "auto:1"])
def test_what_is_no_device_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match=r"^engines.devices: '.*' is not a device; give auto, cpu, cpu:0-3, "):
        check_devices("engines.devices", ["cpu", device])


@pytest.mark.parametrize(
    ("devices", "gpus_each", "message"),
    [
        (["cpu:1-0"], None, "'cpu:1-0' ends before it begins"),
        (["cuda:0", "cuda:0"], None, "cuda:0 is named twice"),
        (["cuda:0,1", "cuda:1"], None, "cuda:1 is named twice"),
        (["cuda:0,0"], None, "cuda:0 is named twice"),
        (["cuda", "cuda:0"], None, "cuda:0 is named twice"),
        (["cuda:0,1"], 1, r"'cuda:0,1' is not one device; give one entry for each, \[cuda:0, cuda:1\]"),
    ],
)
def test_devices_that_cannot_be_used_are_refused(devices: list[str], gpus_each: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=f"^learner.devices: {message}"):
        check_devices("learner.devices", devices, gpus_each)


def test_cores_may_be_shared() -> None:
    check_devices("learner.devices", ["cpu", "cpu", "cpu:0", "cpu:0"], gpus_each=1)


@pytest.mark.parametrize(
    ("listed", "visible"),
    [
        ("0,1", ("0", "1")),
        ("3, GPU-ab", ("3", "GPU-ab")),
        ("MIG-1/2/3", ("MIG-1/2/3",)),
        ("", ()),
        ("-1", ()),
        ("2,-1,3", ("2",)),
        ("NoDevFiles", ()),
    ],
)
def test_visible_gpus_as_cuda_reads_them(listed: str, visible: tuple[str, ...]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed}) == visible


def test_a_process_sees_only_its_gpus_of_those_that_we_see() -> None:
    assert visible_gpus({}) is None
    assert gpu_environment("cuda:1", {}) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert gpu_environment("cuda", {}) == {"CUDA_VISIBLE_DEVICES": "0"}
    assert gpu_environment("cuda:0", {"CUDA_VISIBLE_DEVICES": "2,3"}) == {"CUDA_VISIBLE_DEVICES": "2"}
    assert gpu_environment("cuda:1,0", {"CUDA_VISIBLE_DEVICES": "4,GPU-ab"}) == {"CUDA_VISIBLE_DEVICES": "GPU-ab,4"}
    assert gpu_environment("cpu:0-3", {"CUDA_VISIBLE_DEVICES": "4"}) == {}
    assert gpu_environment("auto", {}) == {}
    for listed in ("4", "-1", ""):
        with pytest.raises(ConfigError, match=f"device 'cuda:1', but CUDA_VISIBLE_DEVICES='{listed}' shows . GPUs"):
            gpu_environment("cuda:1", {"CUDA_VISIBLE_DEVICES": listed})
