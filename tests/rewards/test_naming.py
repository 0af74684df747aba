"""How a card names rewards: so that who has the code finds it, and nothing of this machine is told."""

import functools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from asyncgrpo.config.sections import RewardSection
from asyncgrpo.rewards import RemoteReward, RewardModel, environment_reward
from asyncgrpo.rewards.builtin import accuracy
from asyncgrpo.rewards.functions import from_callables
from asyncgrpo.rewards.importing import from_config
from asyncgrpo.rewards.naming import source_of


def correct(completions: Any, **columns: Any) -> list[float]:
    return [0.0] * len(completions)


class Judge:
    def __call__(self, completions: Any, **columns: Any) -> list[float]:
        return [0.0] * len(completions)

    def score(self, completions: Any, **columns: Any) -> list[float]:
        return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("call", "source"),
    [
        (correct, f"{__name__}:correct"),
        (functools.partial(functools.partial(correct, a=1), b=2), f"{__name__}:correct"),
        (Judge(), f"{__name__}:Judge"),
        (Judge().score, f"{__name__}:Judge.score"),
        (accuracy, "accuracy"),
        (environment_reward, "environment"),
        (RewardModel("org/judge"), "the model org/judge"),
        (RewardModel("/home/me/judge"), "the model judge"),
        (RemoteReward("http://me:secret@host.internal/score"), "a server"),
        (lambda completions, **columns: [0.0], f"{__name__}:<lambda>"),
    ],
)
def test_sources(call: Any, source: str) -> None:
    (function,) = from_callables(call)
    assert source_of(function) == source


def test_files_are_named_without_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my_rewards.py"
    file.write_text("def correct(completions):\n    return [0.0] * len(completions)\n")
    (function,) = from_config([RewardSection(path=f"{file}:correct")])
    assert source_of(function) == "my_rewards.py:correct"
    script = ModuleType("__main__")
    script.__file__ = "/home/me/train.py"
    monkeypatch.setitem(sys.modules, "__main__", script)
    exec("def brief(completions): return [0.0] * len(completions)", vars(script))
    (function,) = from_callables(vars(script)["brief"])
    assert source_of(function) == "train.py:brief"
