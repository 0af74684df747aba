"""Several datasets in one stream."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import load_config
from asyncgrpo.errors import ConfigError, DataError
from asyncgrpo.prompts import PromptStream, load_rows
from asyncgrpo.prompts.stream import Cursor
from asyncgrpo.testing.tiny import make_tokenizer

TOKENIZER = make_tokenizer()


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def sums(folder: Path) -> str:
    return write(folder / "sums.jsonl", [{"prompt": f"s{i}", "answer": i} for i in range(12)])


def words(folder: Path) -> str:
    return write(folder / "words.jsonl", [{"question": f"w{i}", "level": "easy", "answer": "a"} for i in range(4)])


def config(folder: Path, **data: Any) -> RunConfig:
    mix = [
        {"dataset": sums(folder), "weight": 3},
        {"dataset": words(folder), "weight": 1, "columns": {"prompt": "question"}, "system_prompt": "spell"},
    ]
    return RunConfig.model_validate({"data": {"mix": mix, **data}})


def stream(folder: Path, **data: Any) -> PromptStream:
    made = config(folder, **data)
    return PromptStream(load_rows(made), TOKENIZER, made)


def test_rows_of_both_with_their_own_settings(tmp_path: Path) -> None:
    rows = load_rows(config(tmp_path))
    assert (len(rows), str(rows)) == (16, "sums: 12 rows, words: 4 rows")
    assert rows.column_names == ["prompt", "answer", "level", "dataset"]
    assert rows.read([1, 12, 0]) == [
        {"prompt": "s1", "answer": 1, "level": None, "dataset": "sums"},
        {"prompt": "w0", "answer": "a", "level": "easy", "dataset": "words"},
        {"prompt": "s0", "answer": 0, "level": None, "dataset": "sums"},
    ]
    assert (rows.where(11), rows.where(12)) == ("sums: row 11", "words: row 0")
    assert rows.listed([13, 2, 12]) == "row 2 of sums; rows 0 and 1 of words"


def test_prompts_come_by_weight_and_tell_where_they_are_from(tmp_path: Path) -> None:
    prompts = stream(tmp_path)
    found = [prompts.next() for _ in range(32)]
    assert Counter(prompt.source for prompt in found) == {"sums": 24, "words": 8}
    assert {prompt.columns["dataset"] for prompt in found} == {"sums", "words"}
    assert len({prompt.prompt_id for prompt in found}) == 32
    word = next(prompt for prompt in found if prompt.source == "words")
    assert word.prompt == [{"role": "system", "content": "spell"}, {"role": "user", "content": f"w{word.row - 12}"}]
    assert prompts.prompt(word.epoch, word.row) == word


@pytest.mark.parametrize("taken", [0, 5, 16, 39])
def test_a_cursor_is_all_that_a_resume_needs(tmp_path: Path, taken: int) -> None:
    whole, begun, resumed = (stream(tmp_path) for _ in range(3))
    expected = [whole.next().prompt_id for _ in range(taken + 40)][taken:]
    for _ in range(taken):
        begun.next()
    resumed.restore(json.loads(json.dumps(begun.state())))
    assert [resumed.next().prompt_id for _ in range(40)] == expected


def test_under_other_weights_no_prompt_comes_twice(tmp_path: Path) -> None:
    begun = stream(tmp_path)
    before = {begun.next().prompt_id for _ in range(37)}
    changed = config(tmp_path)
    entries = [changed.data.mix[0].model_copy(update={"weight": 0.1}), changed.data.mix[1]]
    changed = changed.model_copy(update={"data": changed.data.model_copy(update={"mix": tuple(entries)})})
    resumed = PromptStream(load_rows(changed), TOKENIZER, changed)
    resumed.restore(begun.state(), allow_changed=True)
    assert before.isdisjoint(resumed.next().prompt_id for _ in range(60))


def test_long_prompts_take_no_turns(tmp_path: Path) -> None:
    write(tmp_path / "long.jsonl", [{"prompt": "x" * length} for length in (2, 30, 2, 30)])
    made = RunConfig.model_validate(
        {"data": {"mix": [{"dataset": sums(tmp_path)}, {"dataset": str(tmp_path / "long.jsonl")}]}}
    )
    made = made.model_copy(update={"data": made.data.model_copy(update={"max_prompt_length": 5})})
    prompts = PromptStream(load_rows(made), TOKENIZER, made)
    assert (prompts.prompts_per_epoch, prompts.usable_rows, prompts.skipped_per_epoch) == (14, 14, 2)
    assert prompts.remarks == ["left out: 2 of 16 prompts have more than 5 tokens: rows 1 and 3 of long"]
    found = [prompts.next() for _ in range(14)]
    assert Counter(prompt.source for prompt in found) == {"sums": 7, "long": 7}
    assert prompts.cursor == Cursor(1, 0)


def test_a_dataset_without_a_usable_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"words: all 4 prompts are longer than 5 tokens; .* take it out of data\.mix"):
        stream(tmp_path, max_prompt_length=5)  # with its system prompt


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"query": "a"}], "more.jsonl: has no column 'prompt'; it has query"),
        ([{"prompt": "a", "dataset": "x"}], "more.jsonl: has a column 'dataset', as the name of each row's dataset is"),
        ([{"prompt": "a"}, {"prompt": ""}], "more.jsonl: row 1: the prompt is empty"),
        ([], "more.jsonl: has no rows"),
    ],
)
def test_a_dataset_at_fault_is_named(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    mix = [{"dataset": sums(tmp_path)}, {"dataset": write(tmp_path / "more.jsonl", rows)}]
    with pytest.raises(DataError) as caught:
        load_rows(RunConfig.model_validate({"data": {"mix": mix}}))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("[{dataset: a.jsonl, wieght: 1}]", "unknown key 'wieght' in data.mix.0 (command line); an entry has dataset,"),
        ("[{dataset: a.jsonl, weight: 0}]", "data.mix.0.weight = 0 (command line): expected more than 0"),
        ("[{weight: 1}]", "data.mix.0.dataset (command line): missing; give a value"),
        ("[{dataset: x/a.jsonl}, {dataset: y/a.jsonl}]", "data.mix has more than one dataset called a; give each a"),
        ("[{dataset: a.jsonl, prompt_template: '{a'}]", "data.prompt_template: expected '}'"),
        ("a.jsonl", 'data.mix = "a.jsonl" (command line): expected a list'),
    ],
)
def test_settings_that_cannot_be(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [f"--data.mix={setting}"])
    assert message in str(caught.value)


def test_one_place_for_datasets(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.dataset=b and data\.mix both name datasets; leave one of them out"):
        load_config(None, ["--data.mix=[{dataset: a}]", "--data.dataset=b"])
    with pytest.raises(ConfigError, match=r"train_dataset is given, and data\.mix names datasets"):
        load_rows(config(tmp_path), [{"prompt": "a"}])
