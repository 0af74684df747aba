import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncgrpo.ablation.tasks.reverse import (
    Options,
    distinct_prompts,
    make_tokenizer,
    prepare,
    right_digits,
    sequences,
    solved,
    supervised,
    untrained,
)
from asyncgrpo.errors import ConfigError

SMALL = {"digits": 4, "width": 32, "layers": 2, "train": 64, "held_out": 128, "start": 0.1, "learning_rate": 3e-3}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("start")
    return folder, prepare(folder, 3, SMALL)


def rows(path: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_rows_say_what_is_to_be_reversed_and_no_prompt_is_both_trained_and_held_out(start) -> None:
    train, held_out = rows(start[1]["data.dataset"]), rows(start[1]["evaluation.dataset"])
    assert (len(train), len(held_out)) == (64, 128)
    for row in (*train, *held_out):
        assert row["prompt"][-1] == "=" and row["solution"] == row["prompt"][:-1][::-1]
    prompts = [row["prompt"] for row in (*train, *held_out)]
    assert len(set(prompts)) == len(prompts)


def test_the_tokenizer_has_a_token_per_character_and_gives_the_text_back(start) -> None:
    tokenizer = AutoTokenizer.from_pretrained(start[1]["model.path"])
    assert tokenizer("90=")["input_ids"] == [11, 2, 12]
    assert tokenizer.decode([11, 2, 1], skip_special_tokens=True) == "90"
    assert sequences(np.array([[9, 0]])).tolist() == [[11, 2, 12, 2, 11]]
    assert make_tokenizer().eos_token_id == 1


def test_the_start_solves_about_what_was_asked_of_prompts_it_has_not_seen(start) -> None:
    model = AutoModelForCausalLM.from_pretrained(start[1]["model.path"])
    answers = []
    for row in rows(start[1]["evaluation.dataset"]):
        prompt = sequences(np.array([[int(digit) for digit in row["prompt"][:-1]]]))[:, :5]
        found = model.generate(input_ids=prompt, do_sample=False, max_new_tokens=4)[0, 5:]
        answers.append("".join(str(int(token) - 2) for token in found) == row["solution"])
    assert 0.02 < np.mean(answers) < 0.5
    tokens = sequences(
        np.array([[int(digit) for digit in row["solution"][::-1]] for row in rows(start[1]["evaluation.dataset"])])
    )
    assert solved(model, tokens) == pytest.approx(np.mean(answers))


def test_the_same_seed_gives_the_same_start_and_another_seed_another(tmp_path: Path, start) -> None:
    for name in ("again", "other"):
        (tmp_path / name).mkdir()
    again, other = prepare(tmp_path / "again", 3, SMALL), prepare(tmp_path / "other", 4, SMALL)

    def contents(settings: dict[str, str]) -> tuple[bytes, bytes]:
        weights = Path(settings["model.path"]) / "model.safetensors"
        return weights.read_bytes(), Path(settings["data.dataset"]).read_bytes()

    assert contents(again) == contents(start[1])
    assert contents(other)[0] != contents(again)[0] and contents(other)[1] != contents(again)[1]


def test_the_random_state_of_others_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    untrained(0, Options(width=16, layers=1, heads=2))
    assert torch.rand(1) == expected


def test_the_reward_is_the_share_of_digits_in_place() -> None:
    completions = ["4321", "4311", "432", "", "43210", "x4321"]
    assert right_digits(completions, ["4321"] * 6) == [1.0, 0.75, 0.75, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"digit": 4}, r"prepare\.options\.digit"),
        ({"digits": 1}, r"prepare\.options\.digits = 1"),
        ({"digits": 3, "train": 4096}, "too few"),
        ({**SMALL, "start": 1.0, "most_updates": 2}, r"most_updates = 2"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        prepare(tmp_path, 0, options)


def test_supervision_ends_at_the_first_look_that_is_good_enough() -> None:
    options = Options(**{**SMALL, "start": 1e-9, "look_every": 1})
    model = supervised(0, distinct_prompts(np.random.default_rng(0), 200, 4), options)
    fresh = untrained(0, options)
    share = solved(fresh, sequences(distinct_prompts(np.random.default_rng(0), 200, 4)))
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True))
    assert same == (share > 0)
