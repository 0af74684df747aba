import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.resolve import Machine, cores_of, gpus_of, resolve
from asyncgrpo.errors import ConfigError


def machine(cores: int = 4, gpus: int = 0, fast_bf16: bool = False) -> Machine:
    return Machine(cores=tuple(range(cores)), gpus=tuple(range(gpus)), fast_bf16=fast_bf16)


def resolved(on: Machine, **sections: object) -> tuple[tuple[str, ...], tuple[str, ...], str, str]:
    """Engine devices, learner devices, engine dtype, transport."""
    config = resolve(RunConfig.model_validate(sections), on)
    return config.engines.devices, config.learner.devices, config.engines.dtype, config.weights.transport


@pytest.mark.parametrize(
    ("cores", "engine", "learner"),
    [(1, "cpu", "cpu"), (2, "cpu:0", "cpu:1"), (3, "cpu:0", "cpu:1-2"), (8, "cpu:0-3", "cpu:4-7")],
)
def test_cores_are_shared_between_engine_and_learner(cores: int, engine: str, learner: str) -> None:
    assert resolved(machine(cores)) == ((engine,), (learner,), "float32", "shared_memory")


def test_the_cores_are_those_that_the_process_may_use() -> None:
    cores = Machine(cores=(2, 3, 5, 8, 9, 11), gpus=(), fast_bf16=False)
    assert resolved(cores)[:2] == (("cpu:2-3,5",), ("cpu:8-9,11",))


def test_a_cpu_that_multiplies_bfloat16_computes_in_it() -> None:
    assert resolved(machine(fast_bf16=True))[2] == "bfloat16"
    assert resolved(machine(fast_bf16=True), engines={"dtype": "float32"})[2] == "float32"


def test_two_gpus_are_one_each_with_weights_over_nccl() -> None:
    assert resolved(machine(gpus=2)) == (("cuda:0",), ("cuda:1",), "bfloat16", "nccl")


def test_one_gpu_must_be_shared_by_hand() -> None:
    with pytest.raises(ConfigError, match=r"one GPU is visible.*--engines.devices.*--learner.devices"):
        resolved(machine(gpus=1))
    by_hand = resolved(machine(gpus=1), engines={"devices": ["cuda:0"]}, learner={"devices": ["cuda:0"]})
    assert by_hand == (("cuda:0",), ("cuda:0",), "bfloat16", "nccl")


def test_external_engines_leave_the_machine_to_the_learner() -> None:
    external = {"engines": {"urls": ["http://a:1", "http://b:2"]}}
    assert resolved(machine(2), **external) == ((), ("cpu",), "float32", "shared_memory")
    assert resolved(machine(gpus=1), **external)[:2] == ((), ("cuda:0",))


def test_named_devices_are_kept() -> None:
    named = resolved(machine(4), engines={"devices": ["cpu:0", "cpu:1"]}, learner={"devices": ["cpu:2-3"]})
    assert named[:2] == (("cpu:0", "cpu:1"), ("cpu:2-3",))
    mixed = resolved(machine(4), learner={"devices": ["cpu"]})
    assert mixed[:2] == (("cpu:0-1",), ("cpu",))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"engines": {"devices": ["cuda:0"]}}, r"engines.devices: 'cuda:0' names \[0\], but this machine has \[\]"),
        ({"learner": {"devices": ["cpu:2-5"]}}, r"learner.devices: 'cpu:2-5' names \[4, 5\], .* has \[0, 1, 2, 3\]"),
        ({"engines": {"devices": ["tpu:0"]}}, "engines.devices: 'tpu:0' is not a device; give cpu"),
        ({"learner": {"devices": ["cpu:x"]}}, "learner.devices: 'cpu:x' is not a device"),
        ({"learner": {"devices": ["cuda:one"]}}, "learner.devices: 'cuda:one' is not a device"),
    ],
)
def test_devices_that_are_not_there_are_named(sections: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(machine(4), **sections)


def test_device_names() -> None:
    assert cores_of("cpu:0-3,6") == (0, 1, 2, 3, 6)
    assert cores_of("cpu") == ()
    assert gpus_of("cuda:0,1") == (0, 1)
    assert gpus_of("cuda") == (0,)
    with pytest.raises(ValueError, match="'cuda:0' is not a CPU device"):
        cores_of("cuda:0")
    with pytest.raises(ValueError, match="'cpu:0' is not a GPU device"):
        gpus_of("cpu:0")


def test_this_machine_has_cores() -> None:
    assert len(Machine.here().cores) >= 1
