"""Datasets from everywhere they may lie, and the ones that are refused before a model is loaded."""

import datetime
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict, IterableDataset

from asyncgrpo.config import RunConfig
from asyncgrpo.config.sections import DataSection
from asyncgrpo.errors import ConfigError, DataError
from asyncgrpo.prompts import load_rows

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": "4"}]
NAN = float("nan")
CHAT = [{"role": "user", "content": "hi"}]


def configured(**data: Any) -> RunConfig:
    return RunConfig.model_validate({"data": data})


def jsonl(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS) + "\n")
    return path


def json_list(folder: Path) -> Path:
    path = folder / "rows.json"
    path.write_text(json.dumps(ROWS))
    return path


def parquet(folder: Path) -> Path:
    path = folder / "rows.parquet"
    Dataset.from_list(ROWS).to_parquet(path)
    return path


def saved(folder: Path) -> Path:
    Dataset.from_list(ROWS).save_to_disk(folder / "saved")
    return folder / "saved"


def saved_splits(folder: Path) -> Path:
    DatasetDict({"train": Dataset.from_list(ROWS), "test": Dataset.from_list(ROWS[:1])}).save_to_disk(folder / "splits")
    return folder / "splits"


@pytest.mark.parametrize("write", [jsonl, json_list, parquet, saved, saved_splits])
def test_rows_are_read_from(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    assert list(load_rows(configured(dataset=str(write(tmp_path))))) == ROWS


def test_a_table_whose_messages_have_what_json_has_not_is_refused_by_file_row_and_key(tmp_path: Path) -> None:
    path = tmp_path / "chats.parquet"
    messages = [{"role": "user", "content": "hi", "sent": datetime.datetime(2024, 1, 2)}]
    pyarrow.parquet.write_table(pyarrow.table({"prompt": [messages]}), path)
    with pytest.raises(DataError) as caught:
        load_rows(configured(dataset=str(path)))
    assert str(caught.value) == (
        f"{path}: row 0: the user message has under 'sent' the datetime datetime.datetime(2024, 1, 2, 0, 0), which "
        "JSON has not; give text, numbers, lists or mappings, or leave it out"
    )


def test_the_configured_split_is_read(tmp_path: Path) -> None:
    path = str(saved_splits(tmp_path))
    assert list(load_rows(configured(dataset=path, dataset_split="test"))) == ROWS[:1]
    with pytest.raises(DataError, match="has no split 'dev'; it has train, test"):
        load_rows(configured(dataset=path, dataset_split="dev"))


def test_rows_in_memory() -> None:
    dataset = Dataset.from_list(ROWS)
    assert load_rows(configured(), dataset).sources[0].values is dataset
    assert list(load_rows(configured(), ROWS)) == ROWS
    with pytest.raises(DataError, match=r"train_dataset has type set; expected a datasets\.Dataset or IterableDataset"):
        load_rows(configured(), {1})  # type: ignore[arg-type]


def test_chats_keep_their_messages() -> None:
    rows = load_rows(configured(), [{"prompt": CHAT}, {"prompt": [{"role": "user", "content": "a"}, *CHAT]}])
    assert rows[0]["prompt"] == CHAT


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "train_dataset: has no rows"),
        (
            [{"question": "a", "answer": "b"}],
            "has no column 'prompt'; it has question, answer. Set data.",
        ),
        ([{"prompt": "a"}, {"prompt": None}], "row 1: the prompt is empty (None); remove the row"),
        ([{"prompt": "a"}, {"prompt": ""}], "row 1: the prompt is empty (''); remove the row"),
        ([{"prompt": "a"}, {"answer": "b"}], "row 1: the prompt is empty (None)"),
        ([{"prompt": CHAT}, {"prompt": []}], "row 1: the prompt is empty ([])"),
        ([{"prompt": "a"}, {"prompt": 5}], "row 1: the prompt is the int 5; expected text or a list of chat messages"),
        ([{"prompt": {"a": 1}}], "row 0: the prompt is the dict {'a': 1}; expected text"),
        ([{"prompt": ["hi"]}], "row 0: the str 'hi' is no chat message"),
        ([{"prompt": [{"content": "hi"}]}], "is no chat message; expected"),
        ([{"prompt": [{"role": "user"}]}], "row 0: the user message has no content"),
        ([{"prompt": [{"role": "user", "content": None}]}], "row 0: the user message has no content"),
        (
            [{"prompt": [{"role": "user", "content": 5}]}],
            "the content of the user message is the int 5; expected",
        ),
        (
            [{"prompt": CHAT}, {"prompt": [{"role": "user", "content": "hi", "when": datetime.date(2024, 1, 2)}]}],
            "train_dataset: row 1: the user message has under 'when' the date datetime.date(2024, 1, 2), which JSON "
            "has not; give text",
        ),
        (["hi"], "row 0 is the str 'hi', expected an object with a 'prompt'"),
        (
            [{"prompt": "a", "x": None}, {"prompt": "a", "x": 1}, {"prompt": "a", "x": "b"}],
            "train_dataset: column 'x' mixes types: row 1 has the int 1, row 2 the str 'b'; give every row the same",
        ),
        ([{"prompt": "a", "x": 1}, {"prompt": "a", "x": True}], "column 'x' mixes types"),
        ([{"prompt": "a", "x": 2**70}], "column 'x' cannot be kept: Python int too large"),
        ([{"prompt": "a"}, {"prompt": CHAT}], "column 'prompt' mixes types: row 0 has the str 'a', row 1 the list"),
    ],
)
def test_refused_rows(rows: list[Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        load_rows(configured(), rows)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parquet_file_is_checked_row_by_row(tmp_path: Path) -> None:
    Dataset.from_dict({"prompt": ["a", None]}).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="row 1: the prompt is empty"):
        load_rows(configured(dataset=str(tmp_path / "rows.parquet")))


def test_a_system_message_beside_the_system_prompt() -> None:
    rows = [{"prompt": [{"role": "system", "content": "x"}, *CHAT]}]
    assert len(load_rows(configured(), rows)) == 1
    with pytest.raises(DataError, match="row 0: the prompt has a system message already"):
        load_rows(configured(system_prompt="be brief"), rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": \n', "a.jsonl:2: not valid JSON"),
        ("a.jsonl", "", "has no rows"),
        ("a.jsonl", "5\n", "row 0 is the int 5, expected an object"),
        ("a.json", '{"prompt": "a"}\n{"prompt": "b"}', "a.json:2: not valid JSON: Extra data (one object per line?"),
        ("a.json", '{"prompt": "a"}', "expected a list of objects, found dict"),
        ("a.parquet", "nonsense", "not a Parquet file"),
        ("a.csv", "prompt\na\n", "unknown kind of file '.csv'"),
        (
            "a.jsonl",
            '{"prompt": "a"}\n{"prompt": "\\ud800"}\n',
            "a.jsonl: row 1: column 'prompt': half of a surrogate pair",
        ),
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": "b", "n": %s}' % ("1" * 5000), "a.jsonl:2: cannot be read: Exceeds"),
        ("a.json", '[{"prompt": "b", "n": %s}]' % ("1" * 5000), "a.json: cannot be read: Exceeds"),
        ("a.jsonl", '{"prompt": %s}' % ("[" * 100_000), "a.jsonl:1: cannot be read: maximum recursion depth"),
    ],
)
def test_refused_files(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as caught:
        load_rows(configured(dataset=str(tmp_path / name)))
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["/nowhere/rows.jsonl", "rows.jsonl", "./rows", "a/b/c"])
def test_a_missing_file_is_not_looked_up_on_the_hub(name: str) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        load_rows(configured(dataset=name))


def test_no_dataset_at_all() -> None:
    with pytest.raises(ConfigError, match=r"data\.dataset is not set"):
        load_rows(configured())


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\ud800"])
def test_a_name_that_no_path_can_have(name: str) -> None:
    with pytest.raises(DataError, match=r"data\.dataset=.*"):
        load_rows(configured().model_copy(update={"data": DataSection.model_construct(dataset=name)}))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_a_byte_order_mark_is_skipped(tmp_path: Path, name: str) -> None:
    path = jsonl(tmp_path) if name.endswith("l") else json_list(tmp_path)
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert load_rows(configured(dataset=str(path)))[1] == ROWS[1]


def test_parquet_with_a_column_twice(tmp_path: Path) -> None:
    table = pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["prompt", "prompt"])
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="has more than one column 'prompt'"):
        load_rows(configured(dataset=str(tmp_path / "rows.parquet")))


def test_values_come_back_as_they_were_written(tmp_path: Path) -> None:
    """Arrow alone makes floats of whole numbers beside others, and gives a tool call the arguments of all others."""
    chats = [
        [{"role": "user", "content": "hi", "tool_calls": None}],
        [
            {"role": "user", "content": "light?"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "light", "arguments": {"room": "a", "on": 1}}}]},
            {"role": "tool", "name": "light", "content": "on"},
        ],
        [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"on": "x"}}}]}],
    ]
    rows = [{"prompt": chat, "answer": answer} for chat, answer in zip(chats, [2, 2.5, None], strict=True)]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(json.dumps(row) for row in [*rows, {"prompt": CHAT}]).encode())
    found = load_rows(configured(dataset=str(path)))
    assert list(found) == [*rows, {"prompt": CHAT, "answer": None}]
    assert [type(row["answer"]) for row in found] == [int, float, type(None), type(None)]
    assert found.read([0, 1, 3])[1] == rows[1]
    assert next(found.prompts()) == [{"role": "user", "content": "hi"}]


def test_nan_beside_whole_numbers_stays_nan() -> None:
    first, second = (row["n"] for row in load_rows(configured(), [{"prompt": "a", "n": NAN}, {"prompt": "b", "n": 1}]))
    assert (str(first), second) == ("nan", 1.0)


@pytest.mark.parametrize("write", [jsonl, json_list, parquet, saved, saved_splits])
def test_only_the_first_rows(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    path = str(write(tmp_path))
    assert list(load_rows(configured(dataset=path, max_rows=1))) == ROWS[:1]
    assert list(load_rows(configured(dataset=path, max_rows=9))) == ROWS


def test_only_the_first_rows_in_memory() -> None:
    assert list(load_rows(configured(max_rows=1), Dataset.from_list(ROWS))) == ROWS[:1]
    assert list(load_rows(configured(max_rows=1), ROWS)) == ROWS[:1]


def test_no_more_lines_are_read_than_wanted(tmp_path: Path) -> None:
    path = jsonl(tmp_path)
    path.write_text(path.read_text() + "no JSON\n")
    assert list(load_rows(configured(dataset=str(path), max_rows=2))) == ROWS
    with pytest.raises(DataError, match=r"rows\.jsonl:4: not valid JSON"):
        load_rows(configured(dataset=str(path)))


def test_a_stream_is_read_as_far_as_wanted() -> None:
    taken: list[int] = []

    def endless() -> Iterator[dict[str, Any]]:
        for number in itertools.count():
            taken.append(number)
            yield {"prompt": f"p{number}", "answer": number}

    rows = load_rows(configured(max_rows=3), IterableDataset.from_generator(endless))
    assert list(rows) == [{"prompt": f"p{number}", "answer": number} for number in range(3)]
    assert set(taken) == {0, 1, 2}
    short = Dataset.from_list(ROWS).to_iterable_dataset()
    assert list(load_rows(configured(max_rows=9), short)) == ROWS
    with pytest.raises(DataError, match=r"train_dataset is a streaming dataset, .*; set data\.max_rows to how many"):
        load_rows(configured(), short)


def test_a_digest_tells_streams_apart() -> None:
    def digest(rows: list[dict[str, Any]]) -> str | None:
        return load_rows(configured(max_rows=9), Dataset.from_list(rows).to_iterable_dataset()).digest

    assert digest(ROWS) == digest(ROWS)
    assert len({digest(ROWS), digest(ROWS[::-1]), digest([ROWS[0], ROWS[1] | {"answer": "5"}])}) == 3
    assert load_rows(configured(), ROWS).digest is None


def test_a_stream_that_breaks() -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield ROWS[0]
        raise OSError("connection lost")

    with pytest.raises(DataError, match="train_dataset: reading its rows failed: connection lost"):
        load_rows(configured(max_rows=5), IterableDataset.from_generator(broken))


def test_of_a_folder_of_data_files_a_part_is_streamed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    jsonl(tmp_path / "data")
    rows = load_rows(configured(dataset=str(tmp_path / "data"), max_rows=1))
    assert list(rows) == ROWS[:1]
    assert rows.digest is not None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl", b'{"prompt": "a"}\n{"prompt": "b", "prompt": "c"}\n', r"rows.jsonl:2: 'prompt' is given twice"),
        ("rows.json", b'[{"prompt": "a", "answer": {"x": 1, "x": 2}}]', r"rows.json: 'x' is given twice in one object"),
        ("rows.jsonl", b'{"prompt": "a"}\n\n{"prompt": "\xe9"}\n', r"rows.jsonl:3: is not UTF-8: .*; save it as UTF-8"),
        ("rows.jsonl", "{}".encode("utf-16"), r"rows.jsonl:1: is not UTF-8"),
        (
            "rows.jsonl",
            b'{"prompt": [{"role": "user", "content": [{"type": "image", "url": "x.png"}]}]}',
            r"row 0: the content of the user message has the dict {'type': 'image'.*, and only text is trained",
        ),
        *(
            (
                "rows.jsonl",
                b'{"prompt": [{"role": "user", "content": %b}]}' % content,
                rf"row 0: the content of the user message {fault}",
            )
            for content, fault in [
                (b"[null]", "has the NoneType None, and only text is trained"),
                (b"[{}]", "has the dict {}, and only text is trained"),
                (b'[""]', "has the str '', and only text is trained"),
                (b'[{"type": "text", "text": "a"}, {}]', "has the dict {}, and only text is trained"),
                (b"[]", r"is empty \(\[\]\)"),
            ]
        ),
    ],
)
def test_what_would_be_read_as_something_else(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_rows(configured(dataset=str(tmp_path / name)))
