"""Renamed columns, and prompts made from them."""

from typing import Any

import pytest
from datasets import Dataset

from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import load_config
from asyncgrpo.config.sections import DataSection
from asyncgrpo.errors import ConfigError, DataError
from asyncgrpo.prompts import load_rows
from asyncgrpo.prompts.shaping import shaped

ROWS = [{"question": "1+1=", "solution": 2, "n": 1}, {"question": "2+2=", "solution": 4, "n": 2}]


def shape(rows: list[dict[str, Any]], **data: Any) -> list[dict[str, Any]]:
    return list(shaped("rows", Dataset.from_list(rows), DataSection(**data)))


def test_columns_get_the_names_that_are_wanted() -> None:
    assert shape(ROWS[:1], columns={"prompt": "question", "answer": "solution"}) == [
        {"prompt": "1+1=", "answer": 2, "n": 1}
    ]


def test_names_may_be_swapped() -> None:
    assert shape(ROWS[:1], columns={"n": "solution", "solution": "n"}) == [{"question": "1+1=", "n": 2, "solution": 1}]


def test_a_template_makes_the_prompt_of_renamed_columns() -> None:
    found = shape(ROWS, columns={"q": "question"}, prompt_template="{{{n}}} {q} or {q}?")
    assert [row["prompt"] for row in found] == ["{1} 1+1= or 1+1=?", "{2} 2+2= or 2+2=?"]
    assert found[0] == {"q": "1+1=", "solution": 2, "n": 1, "prompt": "{1} 1+1= or 1+1=?"}


def test_a_template_may_use_the_prompt_that_it_replaces() -> None:
    assert shape([{"prompt": "a", "n": 1}], prompt_template="Do: {prompt}") == [{"n": 1, "prompt": "Do: a"}]
    assert shape([{"n": 1}], prompt_template="go")[0]["prompt"] == "go"


@pytest.mark.parametrize(
    ("rows", "data", "message"),
    [
        (
            ROWS,
            {"columns": {"prompt": "query", "answer": "sol", "m": "n"}},
            "rows: has no column 'query', 'sol', which data.columns names; it has question, solution, n",
        ),
        (
            ROWS,
            {"columns": {"n": "question"}},
            "rows: data.columns makes 'n' of 'question', but there is a column 'n' already; give that another name "
            "beside it, as in {n: question, other_n: n}",
        ),
        (ROWS, {"prompt_template": "{query}"}, "has no column 'query', which data.prompt_template names; it has quest"),
        (
            [*ROWS, {"question": None, "solution": 1, "n": 1}],
            {"prompt_template": "{n} {question}"},
            "rows: row 2: column 'question' is empty (None); data.prompt_template takes texts and numbers",
        ),
        ([{"a": [1]}], {"prompt_template": "{a}"}, "row 0: column 'a' is the list [1]; data.prompt_template takes"),
    ],
)
def test_refused_shapes(rows: list[dict[str, Any]], data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        shape(rows, **data)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("prompt_template=a {b", "data.prompt_template: expected '}' before end of string; a brace that is text is"),
        ("prompt_template={a.b}", "data.prompt_template: {a.b} is no column; write a name in braces"),
        ("prompt_template={}", "data.prompt_template: {} is no column"),
        ("prompt_template={a:5}", "data.prompt_template: {a:5} is no column"),
        ("prompt_template={a!r}", "data.prompt_template: {a!r} is no column"),
        ("columns={a: c, b: c}", "data.columns gives 'c' more than one name; give it one"),
        ("columns={a: 1}", "data.columns = 1 (command line): expected text"),
    ],
)
def test_settings_that_cannot_be(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [f"--data.{setting}"])
    assert message in str(caught.value)


def test_the_prompt_of_a_renamed_column_is_checked() -> None:
    config = RunConfig.model_validate({"data": {"columns": {"prompt": "question"}}})
    assert [row["prompt"] for row in load_rows(config, ROWS)] == ["1+1=", "2+2="]
    with pytest.raises(DataError, match="row 1: the prompt is empty"):
        load_rows(config, [ROWS[0], {"question": ""}])
