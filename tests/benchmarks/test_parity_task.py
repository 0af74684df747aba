"""Starts, prompts and scores that both sides of the parity benchmark share."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from parity_task import (
    END,
    Settings,
    exact,
    greedy_score,
    held_out_rows,
    in_place,
    make_start,
    make_tokenizer,
    training_rows,
)
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.fixture
def settings(tmp_path):
    return Settings(seed=3, digits=2, steps=4, groups=5, held_out=16, start_score=0.1, folder=str(tmp_path))


def test_rows_are_those_of_the_run_and_none_is_held_out(settings):
    rows, held_out = training_rows(settings), held_out_rows(settings)
    assert len(rows) == 4 * 5 and len(held_out) == 16
    assert not {row["prompt"] for row in rows} & {row["prompt"] for row in held_out}
    assert all(row["answer"] == row["prompt"][1::-1] and row["prompt"][2:] == "=" for row in rows + held_out)
    assert training_rows(settings) == rows != training_rows(replace(settings, seed=4))


def test_every_character_is_a_token_and_comes_back():
    tokenizer = make_tokenizer()
    ids = tokenizer("0129=" + END).input_ids
    assert len(ids) == 6 and ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == "0129="


def test_only_the_answer_itself_is_right():
    assert exact(["21", "12", "211", "2", ""], answer=["21"] * 5) == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_the_start_has_its_score_and_depends_on_the_seed_alone(settings, tmp_path):
    scores = [make_start(replace(settings, folder=str(tmp_path / name))) for name in ("a", "b")]
    assert 0.1 <= scores[0] == scores[1]
    one, other = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name / "start_3", dtype=torch.float32) for name in ("a", "b")
    )
    assert all(torch.equal(mine, yours) for mine, yours in zip(one.parameters(), other.parameters(), strict=True))
    assert AutoTokenizer.from_pretrained(tmp_path / "a" / "start_3").eos_token == END


class Reverses(torch.nn.Module):
    """Likeliest is the right answer, but that 9 is taken for the end token."""

    def forward(self, ids, use_cache):
        following = torch.roll(ids, -1, dims=1)
        nine, end = make_tokenizer()("9" + END).input_ids
        following = torch.where(following == nine, torch.full_like(following, end), following)
        return SimpleNamespace(logits=torch.nn.functional.one_hot(following, 13).float())


def test_an_answer_is_right_if_all_of_it_is():
    rows = [{"prompt": "12=", "answer": "21"}, {"prompt": "30=", "answer": "03"}, {"prompt": "95=", "answer": "59"}]
    assert greedy_score(Reverses(), make_tokenizer(), rows) == pytest.approx(2 / 3)


def test_the_reward_counts_digits_in_place():
    completions = ["654321", "654300", "654321=", "6543", "", "123456"]
    rewards = in_place(completions, answer=["654321"] * 6)
    assert rewards == pytest.approx([1.0, 4 / 6, 6 / 7, 4 / 6, 0.0, 0.0])
