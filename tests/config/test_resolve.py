from pathlib import Path

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.resolve import Machine, locate_model, resolve
from asyncgrpo.errors import ConfigError


def machine(cores: int = 4, gpus: int = 0, fast_bf16: bool = False) -> Machine:
    return Machine(cores=tuple(range(cores)), gpus=tuple(range(gpus)), fast_bf16=fast_bf16)


def resolved(on: Machine, **sections: object) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Engine devices, learner devices, engine dtype."""
    config = resolve(RunConfig.model_validate(sections), on)
    return config.engines.devices, config.learner.devices, config.engines.dtype


@pytest.mark.parametrize(
    ("cores", "engine", "learner"),
    [(1, "cpu", "cpu"), (2, "cpu:0", "cpu:1"), (3, "cpu:0", "cpu:1-2"), (8, "cpu:0-3", "cpu:4-7")],
)
def test_cores_are_shared_between_engine_and_learner(cores: int, engine: str, learner: str) -> None:
    assert resolved(machine(cores)) == ((engine,), (learner,), "float32")


def test_the_cores_are_those_that_the_process_may_use() -> None:
    cores = Machine(cores=(2, 3, 5, 8, 9, 11), gpus=(), fast_bf16=False)
    assert resolved(cores)[:2] == (("cpu:2-3,5",), ("cpu:8-9,11",))


def test_a_cpu_that_multiplies_bfloat16_computes_in_it() -> None:
    assert resolved(machine(fast_bf16=True))[2] == "bfloat16"
    assert resolved(machine(fast_bf16=True), engines={"dtype": "float32"})[2] == "float32"


def test_two_gpus_are_one_each() -> None:
    assert resolved(machine(gpus=2)) == (("cuda:0",), ("cuda:1",), "bfloat16")


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_cpu_auto_is_half_of_the_cores_whatever_gpus_there_are(gpus: int) -> None:
    on_cpus = {"engines": {"devices": ["cpu:auto"]}, "learner": {"devices": ["cpu:auto"]}}
    assert resolved(machine(gpus=gpus), **on_cpus) == (("cpu:0-1",), ("cpu:2-3",), "float32")


def test_weights_go_over_nccl_only_when_asked_to() -> None:
    assert resolve(RunConfig(), machine(gpus=2)).weights.transport == "shared_memory"


def test_one_gpu_must_be_shared_by_hand() -> None:
    with pytest.raises(ConfigError, match=r"one GPU is visible.*--engines.devices.*--learner.devices"):
        resolved(machine(gpus=1))
    by_hand = resolved(machine(gpus=1), engines={"devices": ["cuda:0"]}, learner={"devices": ["cuda:0"]})
    assert by_hand == (("cuda:0",), ("cuda:0",), "bfloat16")


def test_external_engines_leave_the_machine_to_the_learner_and_know_their_type() -> None:
    external = {"engines": {"urls": ["http://a:1", "http://b:2"]}}
    assert resolved(machine(2), **external) == ((), ("cpu",), "auto")
    assert resolved(machine(gpus=1), **external) == ((), ("cuda:0",), "auto")
    external["engines"]["dtype"] = "float32"
    assert resolved(machine(fast_bf16=True), **external)[2] == "float32"


URLS = ["http://a:1", "http://b:2"]


@pytest.mark.parametrize(
    ("on", "devices", "engines", "learner", "dtype"),
    [
        (machine(4), ["cpu:auto"], ("cpu:0-1",), "cpu:2-3", "float32"),
        (machine(4), ["cpu:3", "cpu:2"], ("cpu:3", "cpu:2"), "cpu:2-3", "float32"),
        (machine(gpus=2), ["cuda:0"], ("cuda:0",), "cuda:1", "bfloat16"),
        (machine(gpus=2, fast_bf16=False), ["cpu:auto"], ("cpu:0-1",), "cuda:1", "float32"),
    ],
)
def test_managed_and_running_engines_may_be_mixed(
    on: Machine, devices: list[str], engines: tuple[str, ...], learner: str, dtype: str
) -> None:
    """Devices that are named beside URLS are those of further engines, which share the machine as they would alone."""
    config = RunConfig.model_validate({"engines": {"urls": URLS, "devices": devices}})
    found = resolve(config, on)
    assert (found.engines.urls, found.engines.devices) == (tuple(URLS), engines)
    assert (found.learner.devices, found.engines.dtype) == ((learner,), dtype)
    alone = RunConfig.model_validate({"engines": {"devices": devices}})
    assert resolve(alone, on).learner.devices == found.learner.devices


def test_auto_beside_urls_starts_no_engine_but_auto_beside_devices_does() -> None:
    """`[auto]` is what stands there when nobody wrote anything."""
    on = machine(4)
    assert resolved(on, engines={"urls": URLS, "devices": ["auto"]})[:2] == ((), ("cpu",))
    both = resolve(RunConfig.model_validate({"engines": {"urls": URLS, "devices": ["auto", "cpu:0"]}}), on)
    assert both.engines.devices == ("cpu:0-1", "cpu:0")
    assert resolve(both, on) == both, "what is resolved stays as it is"


def test_a_managed_engine_beside_running_ones_is_checked_like_any_other() -> None:
    with pytest.raises(ConfigError, match=r"engines.devices: 'cuda:3' names \[3\], but this machine has \[0, 1\]"):
        resolved(machine(gpus=2), engines={"urls": URLS, "devices": ["cuda:3"]})


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
    ],
)
def test_devices_that_are_not_there_are_named(sections: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(machine(4), **sections)


def test_what_auto_becomes_must_not_be_named_beside_it() -> None:
    with pytest.raises(ConfigError, match=r"engines.devices: cuda:0 is named twice"):
        resolved(machine(gpus=2), engines={"devices": ["auto", "cuda:0"]})


@pytest.mark.parametrize(
    ("prompt", "completion", "given", "longest"),
    [(100, 50, None, 150), (100, 4, None, 116), (None, 50, None, None), (100, 50, 4096, 4096)],
)
def test_the_longest_sequence_follows_from_the_limits(
    prompt: int | None, completion: int, given: int | None, longest: int | None
) -> None:
    """With room for the completions of the probe, 16 tokens."""
    config = RunConfig.model_validate(
        {
            "data": {"max_prompt_length": prompt},
            "generation": {"max_completion_length": completion},
            "engines": {"max_model_len": given},
        }
    )
    assert resolve(config, machine()).engines.max_model_len == longest


def test_where_a_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert [locate_model(path) for path in ("gpt2", "organisation/model", "")] == ["gpt2", "organisation/model", ""]
    assert locate_model("mine") == locate_model("./mine") == locate_model(str(tmp_path / "mine")) == f"{tmp_path}/mine"
    assert locate_model("./gone") == f"{tmp_path}/gone"
    assert locate_model("~/model") == str(Path.home() / "model")
    config = RunConfig.model_validate({"model": {"path": "mine"}})
    assert resolve(config, machine()).model.path == f"{tmp_path}/mine"


def test_this_machine_has_cores() -> None:
    assert len(Machine.here().cores) >= 1
