"""The adapter, against a stand-in with the interface of verifiers 0.2's MultiTurnEnv."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from turn_cases import Model, make_player, prompt_of, spans

from asyncgrpo.environments import verifiers as adapter
from asyncgrpo.environments.verifiers import VerifiersEnvironment, rows
from asyncgrpo.errors import ConfigError, EnvironmentFailure

PACKAGE = """
import inspect
from verifiers.types import AssistantMessage, UserMessage

class ClientConfig: ...

class Rubric:
    # As the own one of verifiers: functions may be async or not, and one that raises is a 0 and a line in a log.
    has_group_rewards = False
    def __init__(self, *funcs):
        self.funcs = list(funcs)
    async def score_rollout(self, state):
        assert state["completion"] is not None, "rendered first"
        state["reward"] = 0.0
        for function in self.funcs:
            given = {"state": state, "completion": state["completion"], "answer": state["answer"]}
            given = {name: given[name] for name in inspect.signature(function).parameters}
            try:
                score = function(**given)
                state["reward"] += float(await score if inspect.isawaitable(score) else score)
            except Exception:
                state["reward"] += 0.0

class RubricGroup:
    has_group_rewards = False
    def __init__(self, *rubrics):
        self.rubrics = rubrics
    async def score_rollout(self, state):
        rewards = []
        for rubric in self.rubrics:
            await rubric.score_rollout(state)
            rewards.append(state["reward"])
        state["reward"] = sum(rewards)

def right(completion, answer):
    return float(completion[-1].content == answer)

async def long(state, completion, answer):
    return 0.25 * len(state["trajectory"]) if completion[-1].content != answer else 0

async def breaks(completion):
    return 1 / (len(completion) - len(completion))

def says(completion):
    return "none"

class State(dict):
    pass

class Env:
    tool_defs = None
    def __init__(self, mode="plain", turns=3):
        self.mode, self.turns, self.rubric, self.cleaned = mode, turns, Rubric(right, long), 0
        if mode == "rubric_raises":
            self.rubric = RubricGroup(Rubric(right), Rubric(long, breaks))
        if mode == "rubric_says":
            self.rubric = Rubric(right, says)
        if mode == "group_rubric":
            self.rubric.has_group_rewards = True
        if mode == "tools":
            self.tool_defs = ["search"]
    def get_dataset(self):
        return [{"prompt": [], "answer": "6"}]
    async def init_state(self, input, client, model, sampling_args=None):
        assert isinstance(client, ClientConfig)
        prompt = [UserMessage(content=m["content"]) for m in input["prompt"]]
        return State(input, prompt=prompt, trajectory=[], trajectory_id="t", completion=None, reward=None, error=None,
                     final_env_response=None)
    async def setup_state(self, state):
        if self.mode == "rewrites_prompt":
            state["prompt"] = [UserMessage(content="other")]
        return state if self.mode == "returns" else None
    async def add_trajectory_step(self, state, step):
        assert set(step) == {"prompt", "completion", "response", "tokens", "reward", "advantage", "is_truncated",
                             "trajectory_id", "extras"}
        state["trajectory"].append(step)
    async def is_completed(self, state):
        return len(state["trajectory"]) >= self.turns
    async def env_response(self, messages, state, **kwargs):
        if self.mode == "fails":
            state["error"] = "the sandbox is gone"
        if messages[-1].content == state["answer"]:
            state["final_env_response"] = [UserMessage(content="Right.")]
            return []
        return [UserMessage(content=f"not {messages[-1].content}")]
    async def get_prompt_messages(self, state):
        last = state["trajectory"][-1]
        messages = [*last["prompt"], *last["completion"]]
        if self.mode == "rewrites":
            messages = messages[1:]
        return messages + await self.env_response(messages, state)
    async def cleanup(self, state):
        self.cleaned += 1
        last = state["trajectory"][-1]
        state["completion"] = [*last["prompt"], *last["completion"]]

def load_environment(id, **arguments):
    if id == "other":
        return object()
    return Env(**arguments)
"""
TYPES = """
class _Message:
    def __init__(self, content): self.content = content
    def model_dump(self, exclude_none): return {"role": self.role, "content": self.content}
class AssistantMessage(_Message): role = "assistant"
class UserMessage(_Message): role = "user"
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "verifiers"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "types.py").write_text(TYPES)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield folder
    forget()


def forget() -> None:
    adapter._load.cache_clear()
    for name in ("verifiers", "verifiers.types"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def player_of(**arguments: Any) -> Any:
    return make_player(VerifiersEnvironment, arguments={"id": "game", **arguments})


@pytest.mark.parametrize("mode", ["plain", "returns"])
async def test_its_turns_are_ours_and_its_rubric_is_the_reward(mode: str) -> None:
    played = await player_of(mode=mode).play(prompt_of(answer="6"), Model("5", "6"))
    assert spans(played.completion) == [
        ("5<|im_end|>", True),
        ("\n<|im_start|>user\nnot 5<|im_end|>\n<|im_start|>assistant\n", False),
        ("6<|im_end|>", True),
    ]
    assert (played.reward, played.turns, played.completion.finish_reason) == (1.0, 2, "stop")
    played = await player_of(mode=mode).play(prompt_of(answer="6"), Model("1", "2", "3"))
    assert (played.reward, played.turns, played.completion.finish_reason) == (0.75, 3, "stop")


async def test_a_cut_answer_is_the_last_and_is_scored() -> None:
    played = await player_of().play(prompt_of(answer="6"), Model(("55", "length")))
    assert (played.reward, played.turns, played.completion.finish_reason) == (0.25, 1, "length")


async def test_it_is_cleaned_up_once() -> None:
    player = player_of(turns=1)
    await player.play(prompt_of(answer="6"), Model("1"))
    env = adapter._load("game", '{"turns": 1}')
    assert env.cleaned == 1


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("rewrites_prompt", "reset: ValueError: its setup_state changes the prompt"),
        ("rewrites", "turn 1: step: ValueError: it rewrites earlier messages"),
        ("fails", "turn 1: step: RuntimeError: verifiers: the sandbox is gone"),
        ("rubric_raises", "get_reward: RuntimeError: the rubric's breaks raised ZeroDivisionError: division by zero"),
        ("rubric_says", "get_reward: RuntimeError: the rubric's says raised ValueError: could not convert string to"),
    ],
)
async def test_what_it_does_that_is_not_supported_fails_its_sample(mode: str, message: str) -> None:
    """A function of the rubric that raises is 0 to the package; a failure is never a reward here."""
    with pytest.raises(EnvironmentFailure, match=message):
        await player_of(mode=mode).play(prompt_of(answer="6"), Model("1", "2", "3"))


async def test_what_can_be_known_is_refused_before_a_run_starts(package: Path) -> None:
    for id, arguments, message in [
        ("other", {}, "environment 'other' of verifiers is no MultiTurnEnv"),
        ("game", {"mode": "tools"}, "environment 'game' of verifiers has tools of its own"),
        ("game", {"mode": "group_rubric"}, "'game' of verifiers has a rubric that compares the samples of a group"),
    ]:
        with pytest.raises(ConfigError, match=message):
            make_player(VerifiersEnvironment, arguments={"id": id, **arguments})
    (package / "__init__.py").write_text("__version__ = '0.4.0'\n")
    forget()
    with pytest.raises(
        ConfigError, match=r"verifiers 0.4.0 has no MultiTurnEnv any more; install verifiers>=0.1.14,<0.3"
    ):
        make_player(VerifiersEnvironment, arguments={"id": "game"})


def test_its_rows_are_a_dataset() -> None:
    assert rows("game") == [{"prompt": [], "answer": "6"}]
