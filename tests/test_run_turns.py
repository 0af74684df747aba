"""Whole runs of several turns: what is trained, written down, trained once more and gone on from."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from run_cases import FAKE_ENGINE, HERE, Run, engine_beside, run_config
from safetensors.numpy import load_file

from asyncgrpo import AsyncGRPOConfig, AsyncGRPOTrainer
from asyncgrpo.config.loading import from_python
from asyncgrpo.config.render import render_config
from asyncgrpo.environments import Answer, Turn
from asyncgrpo.errors import ConfigError, EnvironmentFailure, RewardError
from asyncgrpo.launch import Outcome, run_job
from asyncgrpo.observe.evaluations import read_evaluations
from asyncgrpo.observe.ledger_file import read_ledger
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.preflight import Job, prepare
from asyncgrpo.retraining import load_rerun, retrain
from asyncgrpo.rewards import environment_reward
from asyncgrpo.rewards.functions import from_callables
from asyncgrpo.testing.tiny import END, make_tokenizer

TOKENIZER = make_tokenizer()
SHORT = {"timeout": 30.0}
END_ID = int(TOKENIZER.convert_tokens_to_ids(END))
ROWS = [{"prompt": [{"role": "user", "content": f"Guess {i}."}], "number": i % 10} for i in range(24)]


def guesses(prompt: tuple[int, ...], rng: random.Random) -> Sequence[int]:
    """A fake engine's script: a digit and the end of the turn."""
    return [*TOKENIZER.encode(str(rng.randrange(10))), END_ID]


class Guessing:
    """`hint` stands behind every prompt; a guess that is off by at most `slack` wins."""

    def __init__(self, slack: int = 1, hint: str = "") -> None:
        self.slack, self.hint = slack, hint

    def reset(self, number: int) -> str | None:
        self.number = number
        return self.hint or None

    async def step(self, answer: Answer) -> Turn:
        off = abs(int(answer.text) - self.number)
        if off <= self.slack:
            return Turn(done=True, reward=2.0 - 0.5 * answer.turn)
        return Turn(messages="No." if off < 5 else "Far.", reward=-0.01 * off)


def job_of(
    model: Path,
    folder: Path,
    urls: Sequence[str] = (),
    factory: Any = Guessing,
    reward: Any = None,
    eval_rows: Any = None,
    **sections: Any,
) -> Job:
    base: dict[str, Any] = {
        "generation": {"num_generations": 4, "max_completion_length": 150, "request_timeout": 20.0},
        "environment": {"max_turns": 3},
        "buffer": {"max_staleness": 2, "stall_timeout": 60.0},
        "training": {"max_steps": 4, "groups_per_step": 2, "learning_rate": 1e-3},
        "weights": {"probe": False},
    }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    rewards = None if reward is None else from_callables(reward)
    config = run_config(model, folder, urls, **base)
    return prepare(config, rows=ROWS, rewards=rewards, environment_factory=factory, eval_rows=eval_rows, machine=HERE)


def train(model: Path, folder: Path, **settings: Any) -> Outcome:
    with engine_beside(model, script=guesses) as engine:
        job = job_of(model, folder, [engine.url], **settings)
        text = render_config(from_python(job.config, ()))
        return run_job(job, config_text=text, engine_module=FAKE_ENGINE)


def check_retraining(folder: Path, steps: int) -> None:
    """What was recorded gives the very same model when it is trained in one go."""
    source = RunFolder(folder / "run")
    again = retrain(source, load_rerun(source.path, [f"--run.output_dir={folder / 'again'}"]))
    assert [(step.step, list(step.differences())) for step in again] == [(n, []) for n in range(1, steps + 1)]
    then, now = (load_file(f / "final_model" / "model.safetensors") for f in (folder / "run", folder / "again"))
    assert all(then[name].tobytes() == now[name].tobytes() for name in then)


def check_tokens(row: dict[str, Any]) -> int:
    """Of one sample: what it says is what the template makes of its conversation. Returns its turns."""
    sampled = row["sampled"]
    edges = [0, *(i for i in range(1, len(sampled)) if sampled[i] != sampled[i - 1]), len(sampled)]
    parts = [(TOKENIZER.decode(row["token_ids"][a:b]), sampled[a]) for a, b in itertools.pairwise(edges)]
    answers, given = [text for text, mark in parts if mark], [text for text, mark in parts if not mark]
    assert all(len(text) == 1 + len(END) and text[0].isdigit() and text.endswith(END) for text in answers)
    head, tail = "\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    assert set(given) <= {f"{head}No.{tail}", f"{head}Far.{tail}"}
    assert sampled[0] and sampled[-1]
    for logprob, mark in zip(row["behaviour_logprobs"], sampled, strict=True):
        assert (logprob != 0.0) == mark
    return len(answers)


def test_a_run_trains_what_was_sampled_and_records_it(tiny_model: Path, tmp_path: Path) -> None:
    sections = {"replay": {"replay_fraction": 0.5}, "training": {"max_steps": 6, "num_iterations": 2}}
    outcome = train(tiny_model, tmp_path, **sections)
    assert (outcome.steps, outcome.interrupted) == (6, False)
    run = Run(tmp_path)
    turns = [check_tokens(row) for row in run.trained]
    assert set(turns) == {1, 2, 3}, "every length of trajectory is there"
    for row in run.trained:
        (name, reward), *others = row["rewards"]
        assert (name, others, row["reward"]) == ("environment", [], reward)
    won = [row["reward"] for row, count in zip(run.trained, turns, strict=True) if count == 1]
    assert won and set(won) == {1.5}
    for step in run.steps:
        rows = run.of_step(step["step"])
        assert step["tokens_trained"] == sum(sum(row["sampled"]) for row in rows)
        assert step["completion_tokens_max"] == max(len(row["token_ids"]) for row in rows)
    check_retraining(tmp_path, 6)


def test_engine_and_learner_agree_on_every_turn(tiny_model: Path, tmp_path: Path) -> None:
    """The log-probabilities of later turns are those of the very context that the learner gives them."""
    training = {"max_steps": 2, "learning_rate": 1e-9}
    train(tiny_model, tmp_path, training=training, buffer={"max_staleness": 0})
    run = Run(tmp_path)
    assert max(check_tokens(row) for row in run.trained) == 3
    for step in run.steps:
        assert step["importance_weight_mean"] == pytest.approx(1.0, abs=1e-3)
        assert step["importance_weight_max"] == pytest.approx(1.0, abs=1e-2)


class FailsAt:
    """The environment's reward, until the n-th call ends the run."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, environment_reward: Any, completions: Any) -> list[float]:
        self.left -= 1
        if self.left == 0:
            raise ValueError("on purpose")
        assert all(conversation[0]["role"] == "assistant" for conversation in completions)
        return list(environment_reward)

    __name__ = "fails_at"


@pytest.mark.parametrize("hint", ["", " It is a digit."])
def test_a_run_goes_on_from_its_checkpoint(hint: str, tiny_model: Path, tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "replay": {"replay_fraction": 0.5},
        "training": {"max_steps": 8},
        "checkpoint": {"save_steps": 2},
        "environment": {"arguments": {"hint": hint}},
    }
    with pytest.raises(RewardError, match="on purpose"):
        train(tiny_model, tmp_path, reward=FailsAt(8), **sections)
    assert len(Run(tmp_path).steps) >= 4
    train(tiny_model, tmp_path, reward=FailsAt(10_000), **sections)
    run = Run(tmp_path)
    assert [step["step"] for step in run.steps] == list(range(1, 9))
    assert all(hint in row["prompt"] for row in run.trained)
    assert max(check_tokens(row) for row in run.trained) > 1
    check_retraining(tmp_path, 8)


class Rainy(Guessing):
    """Fails for one of the rows, in its second turn."""

    async def step(self, answer: Answer) -> Turn:
        if self.number == 3 and answer.turn == 2:
            raise OSError("it rains")
        turn = await super().step(answer)
        return Turn(messages="No.", reward=0.0) if self.number == 3 else turn


def test_a_prompt_whose_environment_fails_comes_again_and_is_given_up(tiny_model: Path, tmp_path: Path) -> None:
    train(tiny_model, tmp_path, factory=Rainy, data={"shuffle_dataset": False}, training={"max_steps": 8})
    run = Run(tmp_path)
    fates = {(entry.fate, entry.reason) for entry in read_ledger(tmp_path / "run" / "ledger.jsonl")}
    assert ("reissued", "environment") in fates
    assert not any('"Guess 3."' in row["prompt"] for row in run.samples), "it is never a sample, and no reward of 0"
    assert run.steps[-1]["groups_reissued/environment"] >= 1
    log = (tmp_path / "run" / "logs" / "orchestrator.log").read_text()
    assert "(prompt 0-3) failed: environment Rainy, prompt 0-3, turn 2: step: OSError: it rains" in log


class Twice:
    """Two answers, whatever they are; the reward is the row's number. Of number 3 it fails."""

    def reset(self, number: int) -> None:
        self.number = number

    def step(self, answer: Answer) -> Turn:
        if self.number == 3 and answer.turn == 2:
            raise OSError("it rains")
        return Turn(messages="Again.", done=answer.turn == 2, reward=self.number / 2)


def test_held_out_prompts_are_played_as_those_of_training(tiny_model: Path, tmp_path: Path) -> None:
    held_out = [{"prompt": [{"role": "user", "content": f"Say {i}."}], "number": i} for i in (1, 2, 3, 6)]
    evaluation = {"eval_steps": 2, "num_generations_eval": 2, **SHORT}
    sections: dict[str, Any] = {"evaluation": evaluation, "generation": {"max_failed_groups": 100}}
    train(tiny_model, tmp_path, factory=Twice, eval_rows=held_out, **sections)
    records = read_evaluations(tmp_path / "run" / "evaluation.jsonl")
    assert [record["step"] for record in records] == [0, 2, 4]
    for record in records:
        assert record["reward_mean"] == record["reward_mean/environment"] == pytest.approx(3.0)
        assert record["prompt_rewards"] == [1.0, 2.0, None, 6.0]
        assert (record["samples"], record["samples_failed"]) == (6, 2)
        assert (record["version_min"], record["version_max"]) == (record["step"], record["step"])
    rows = pq.read_table(tmp_path / "run" / "rollouts" / "eval_000002.parquet").to_pylist()
    for row in rows:
        given = [token for token, mark in zip(row["token_ids"], row["sampled"], strict=True) if not mark]
        assert TOKENIZER.decode(given) == "\n<|im_start|>user\nAgain.<|im_end|>\n<|im_start|>assistant\n"


def silence(completions: list[Any], **columns: Any) -> list[float]:
    return [0.0] * len(completions)


def test_held_out_rows_need_what_the_environment_does(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^evaluation.dataset: environment Guessing: reset needs 'number', which"):
        job_of(tiny_model, tmp_path, eval_rows=[{"prompt": ROWS[0]["prompt"]}], evaluation=SHORT)
    own: dict[str, Any] = {"rewards": ["environment"], **SHORT}
    held_out = job_of(tiny_model, tmp_path, eval_rows=ROWS, evaluation=own).held_out
    assert held_out is not None and [function.name for function in held_out.rewards] == ["environment"]
    with pytest.raises(ConfigError, match="is the environment's own reward, and there is no environment"):
        job_of(tiny_model, tmp_path, factory=None, eval_rows=ROWS, evaluation=own, reward=silence)
    limits = {"evaluation": {"max_completion_length": 40, **SHORT}, "data": {"max_prompt_length": 100}}
    job = job_of(tiny_model, tmp_path, eval_rows=ROWS, **limits)
    assert job.held_out is not None and job.held_out.player is not None and job.player is not None
    assert (job.player.limits.max_tokens, job.held_out.player.limits.max_tokens) == (150, 40)
    assert job.held_out.player.calls is job.player.calls, "one limit on calls at the same time"


class Broken(Guessing):
    async def step(self, answer: Answer) -> Turn:
        raise OSError("no display")


def test_an_environment_that_always_fails_ends_the_run(tiny_model: Path, tmp_path: Path) -> None:
    message = r"^3 groups in a row failed \(generation.max_failed_groups\); the last: environment Broken, prompt .*, t"
    with pytest.raises(EnvironmentFailure, match=message):
        train(tiny_model, tmp_path, factory=Broken, generation={"max_failed_groups": 3})


def test_what_cannot_be_played_is_refused_before_anything_starts(tiny_model: Path, tmp_path: Path) -> None:
    class NeedsMore(Guessing):
        def reset(self, number: int, level: int) -> None: ...

    class Nothing: ...

    with pytest.raises(ConfigError, match="environment NeedsMore: reset needs 'level', which is no column of the"):
        job_of(tiny_model, tmp_path, factory=NeedsMore)
    with pytest.raises(ConfigError, match=r"environment Nothing has neither step\(answer\) nor public methods"):
        job_of(tiny_model, tmp_path, factory=Nothing)
    with pytest.raises(ConfigError, match=r"Guessing cannot be made with environment.arguments=\{'size': 3\}: .*size"):
        job_of(tiny_model, tmp_path, environment={"arguments": {"size": 3}})
    with pytest.raises(
        ConfigError, match="'environment' is the environment's own reward, and there is no environment; n"
    ):
        config = run_config(tiny_model, tmp_path).model_dump() | {"rewards": [{"path": "environment"}]}
        prepare(type(run_config(tiny_model, tmp_path)).model_validate(config), rows=ROWS, machine=HERE)


def add(a: int) -> int:
    """Add one.

    Args:
        a: to what
    """
    return a + 1


def test_the_reward_is_the_environments_own_unless_others_are_named(tiny_model: Path, tmp_path: Path) -> None:
    data = [{"prompt": [{"role": "user", "content": "Call add."}], "number": 1}]

    def trainer(**arguments: Any) -> AsyncGRPOTrainer:
        args = AsyncGRPOConfig(output_dir=str(tmp_path / "run"), vllm_devices=["cpu"], learner_devices=["cpu"])
        return AsyncGRPOTrainer(str(tiny_model), args=args, train_dataset=data, **arguments)

    def mine(completions: Any) -> list[float]:
        return [0.0 for _ in completions]

    names = [
        [reward.name for reward in trainer(**arguments).job.rewards]
        for arguments in (
            {"environment_factory": Guessing},
            {"environment_factory": Guessing, "reward_funcs": mine},
            {"environment_factory": Guessing, "reward_funcs": [environment_reward, mine]},
            {"tools": [add], "reward_funcs": mine},
        )
    ]
    assert names == [["environment"], ["mine"], ["environment_reward", "mine"], ["mine"]]
    with pytest.raises(ConfigError, match="no reward function is given"):
        trainer(tools=[add])
    with pytest.raises(ConfigError, match="reward_funcs is empty"):
        trainer()
    player = trainer(environment_factory=Guessing).job.player
    assert player is not None and player.limits.max_turns == 8


def test_environments_by_path(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "my_env.py"
    file.write_text("class Env:\n    def step(self, answer):\n        pass\nnumber = 3\n")
    for path, message in [
        (f"{file}:Gone", r"environment '.*Gone': no 'Gone' in .*; its classes: \['Env'\]"),
        (f"{file}:number", "expected a class, or a function that makes one, found 3"),
        ("/nowhere/my_env.py:Env", "environment file /nowhere/my_env.py: no such file"),
    ]:
        with pytest.raises(ConfigError, match=message):
            job_of(tiny_model, tmp_path, factory=None, environment={"path": path})
    player = job_of(tiny_model, tmp_path, factory=None, environment={"path": f"{file}:Env"}).player
    assert player is not None and player.name == f"{file}:Env"
    assert asyncio.iscoroutinefunction(player.play)
