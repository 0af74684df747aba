"""The worked example of several turns, as it lies in configs/, from its file to a trained model: on a tiny model and
a fake engine that guesses at random."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from run_cases import FAKE_ENGINE, HERE, Run, engine_beside

from asyncgrpo.config.loading import load_config
from asyncgrpo.config.render import render_config
from asyncgrpo.launch import run_job
from asyncgrpo.preflight import prepare
from asyncgrpo.testing.tiny import END, make_tokenizer

CONFIG = Path(__file__).parents[1] / "configs" / "guessing_game.yaml"
TOKENIZER = make_tokenizer()
END_ID = int(TOKENIZER.convert_tokens_to_ids(END))
FOUND = (1.0, 0.9, 0.8, 0.7)


def guesses(prompt: tuple[int, ...], rng: random.Random) -> Sequence[int]:
    """A digit, or now and then what is no guess."""
    return [*TOKENIZER.encode(str(rng.randrange(1, 10)) if rng.random() < 0.9 else "well"), END_ID]


def reward_of(completion: str, number: int) -> float:
    """By the game's rules, from what was said; and every hint was the right one."""
    first, *later = completion.split("\nuser\n")
    turns = [("", first.strip()), *((hint, answer.strip()) for hint, _, answer in (t.partition("\n") for t in later))]
    turns = [(hint, answer.removeprefix("assistant").strip()) for hint, answer in turns]
    for place, (hint, answer) in enumerate(turns):
        if place:
            assert hint == ("Higher." if int(turns[place - 1][1]) < number else "Lower.")
        is_last = place == len(turns) - 1
        assert is_last or int(answer) != number
        if is_last:
            return -1.0 if answer == "well" else FOUND[place] if int(answer) == number else 0.0
    raise AssertionError("nothing was said")


def test_the_guessing_game_trains_from_its_file(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CONFIG.parents[1])
    with engine_beside(tiny_model, script=guesses) as engine:
        settings = {
            "run.output_dir": tmp_path / "run", "model.path": tiny_model, "engines.urls": f"[{engine.url}]",
            "engines.devices": "[]", "learner.devices": "[cpu]", "learner.mode": "inline",
            "weights.shared_memory_dir": tmp_path, "training.max_steps": 2,
            # A token of the tiny model is a letter.
            "data.max_prompt_length": 340, "engines.max_model_len": 500, "generation.max_completion_length": 150,
        }  # fmt: skip
        loaded = load_config(CONFIG, [f"--{name}={value}" for name, value in settings.items()])
        job = prepare(loaded.config, machine=HERE)
        outcome = run_job(job, config_text=render_config(loaded), engine_module=FAKE_ENGINE)
    assert (outcome.steps, outcome.interrupted) == (2, False)
    numbers = [json.loads(line)["number"] for line in (CONFIG.parent / "guessing_game.jsonl").read_text().splitlines()]
    run = Run(tmp_path)
    assert len(run.trained) == 2 * 4 * 8
    for row in run.trained:
        number = numbers[int(row["prompt_id"].partition("-")[2])]
        assert row["reward"] == pytest.approx(reward_of(row["completion"], number))
        given = len(row["sampled"]) - sum(row["sampled"])
        assert bool(given) == ("\nuser\n" in row["completion"])
    assert len({row["reward"] for row in run.trained}) >= 4, "many kinds of end are there"
    assert (tmp_path / "run" / "final_model" / "model.safetensors").is_file()
