"""Reward functions named by path in a configuration."""

from pathlib import Path

import pytest

from asyncgrpo.config.sections import RewardSection
from asyncgrpo.errors import ConfigError
from asyncgrpo.rewards import check_parameters, from_config

SOURCE = """
from dataclasses import dataclass

loaded = []
value = 3

def correct(completions, **_):
    return [1.0] * len(completions)

@dataclass
class Judge:
    def grade(self, completions):
        return [0.0] * len(completions)

judge = Judge()

class Above:
    def __init__(self, limit, strict=False):
        self.limit, self.strict = float(limit), strict

    def __call__(self, completions):
        return [float(len(text) > self.limit) for text in completions]

def at_least(completions, limit):
    return [float(len(text) >= limit) for text in completions]
"""


def section(path: str, **fields: object) -> RewardSection:
    return RewardSection.model_validate({"path": path, **fields})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_rewards.py"
    path.write_text(SOURCE)
    return path


def test_a_function_of_a_file(file: Path) -> None:
    (reward,) = from_config([section(f"{file}:correct", weight=0.5, timeout=3, on_error="drop_group")])
    assert (reward.name, reward.weight, reward.timeout) == ("correct", 0.5, 3.0)
    assert (reward.on_error, from_config([section(f"{file}:correct")])[0].on_error) == ("drop_group", "stop")
    assert reward.call(completions=["a", "b"]) == [1.0, 1.0]


def test_arguments_make_an_object_of_a_class_and_go_into_every_call_of_a_function(file: Path) -> None:
    above, at_least = from_config(
        [section(f"{file}:Above", arguments={"limit": 1}), section(f"{file}:at_least", arguments={"limit": 1})]
    )
    assert (above.name, at_least.name) == ("Above", "at_least")
    assert above.call(completions=["a", "bb"]) == [0.0, 1.0]
    assert at_least.call(completions=["a", ""]) == [1.0, 0.0]
    check_parameters([above, at_least], set())  # `limit` is no column


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Above", {}, "making it from no arguments failed: TypeError: "),
        ("Above", {"limit": "x"}, "making it from limit failed: ValueError: could not convert string to float: 'x'"),
        ("at_least", {"most": 1}, "takes no argument 'most'; it takes completions, limit"),
    ],
)
def test_arguments_that_do_not_fit(file: Path, name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_config([section(f"{file}:{name}", arguments=arguments)])
    assert message in str(caught.value)


def test_a_file_is_run_once_and_names_stay_unique(file: Path) -> None:
    rewards = from_config([section(f"{file}:correct"), section(f"{file}:judge.grade"), section(f"{file}:correct")])
    assert [reward.name for reward in rewards] == ["correct", "grade", "correct_2"]
    assert rewards[0].call is rewards[2].call


def test_two_files_of_one_name_are_two_modules(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "my_rewards.py"
    other.parent.mkdir()
    other.write_text("def correct(completions):\n    return [2.0]\n")
    first, second = from_config([section(f"{file}:correct", name="a"), section(f"{other}:correct", name="b")])
    assert (first.name, first.call(completions=["x"])) == ("a", [1.0])
    assert (second.name, second.call(completions=["x"])) == ("b", [2.0])


def test_a_function_of_an_installed_module() -> None:
    (reward,) = from_config([section("statistics:fmean")])
    assert reward.call([1.0, 3.0]) == 2.0


def test_a_module_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rewards_beside_me.py").write_text("def f(completions):\n    return [7.0]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path.parent))  # restores sys.path afterwards
    (reward,) = from_config([section("rewards_beside_me:f")])
    assert reward.call(completions=["a"]) == [7.0]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module_xyz:f", "importing no_such_module_xyz failed: ModuleNotFoundError: No module named"),
        ("statistics:gone", "no 'gone' in statistics; its functions: ["),
        ("{file}:gone", "; its functions: ['correct', 'at_least']"),
        ("{file}:value", "expected a function, found 3"),
        ("{file}:Judge", "instances of this class cannot be called; give it a __call__"),
        ("{file}", "expected package.module:function, file.py:function, or a built-in one: accuracy, "),
        ("statistics", "expected package.module:function, file.py:function, or a built-in one: accuracy, "),
        ("statistics:", "expected package.module:function, file.py:function, or a built-in one: accuracy, "),
        (":f", "expected package.module:function, file.py:function, or a built-in one: accuracy, "),
        ("/nowhere/rewards.py:f", "reward file /nowhere/rewards.py: no such file"),
    ],
)
def test_paths_that_lead_nowhere(file: Path, path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_config([section(path.replace("{file}", str(file)))])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n", "SyntaxError"),
        ("import gone_xyz", "ModuleNotFoundError"),
        ("raise RuntimeError('no')", "no"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_run(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(ConfigError, match=message):
        from_config([section(f"{tmp_path / 'broken.py'}:f")])


def test_the_environments_own_reward() -> None:
    (own,) = from_config([section("environment")])
    assert (own.name, own.call(environment_reward=[1.0, None])) == ("environment", [1.0, None])
    with pytest.raises(ConfigError, match="reward 'environment' takes no argument 'x'; it takes environment_reward"):
        from_config([section("environment", arguments={"x": 1})])
    with pytest.raises(ConfigError, match=r"or a built-in one: .*, environment; did you mean environment\?"):
        from_config([section("enviroment")])


def test_no_rewards_at_all() -> None:
    with pytest.raises(ConfigError, match="no reward function is given"):
        from_config([])
