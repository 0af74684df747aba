"""Scalars by YAML 1.2, duplicates, lines, and dump as the inverse of parse."""

import pytest

from asyncgrpo.config.yaml_text import dump, parse
from asyncgrpo.errors import ConfigError

BOMB = "a0: &a0 x\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 40))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.5E+3", 1500.0),
        (".5", 0.5),
        ("-3", -3),
        ("010", 10),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("yes", "yes"),
        ("off", "off"),
        ("true", True),
        ("null", None),
        ("'1e-6'", "1e-6"),
        ("[cpu:0-3, 'cuda:0,1']", ["cpu:0-3", "cuda:0,1"]),
        ("1e", "1e"),
        (".", "."),
        ("", None),
    ],
)
def test_scalars_follow_the_core_schema(text: str, value: object) -> None:
    parsed = parse(text, "text").value
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        *("plain", "1e-6", "yes", "null", "a: b # c", "two\nlines", "", "héllo \U0001f600"),
        *(1e-6, 1e22, -0.5, 3, True, None),
        *([], ["a", 1, None], {}, {"a": [1.5, "x\ny"], "b": {"c": "no"}}),
    ],
)
def test_dump_is_one_line_that_parses_back(value: object) -> None:
    text = dump(value)
    assert "\n" not in text
    assert parse(text, "text").value == value


def test_lines_of_sections_and_fields() -> None:
    document = parse("# comment\nrun:\n  seed: 1\n\ntraining:\n  max_steps: 2\n", "run.yaml")
    assert document.lines == {("run",): 2, ("run", "seed"): 3, ("training",): 5, ("training", "max_steps"): 6}


def test_merged_settings_keep_the_line_where_they_are_written() -> None:
    document = parse("base: &base\n  a: 1\n  b: 2\nrun:\n  <<: *base\n  b: 3\n", "run.yaml")
    assert document.value["run"] == {"a": 1, "b": 3}
    assert document.lines["run", "a"] == 2
    assert document.lines["run", "b"] == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run:\n  seed: 1\n  seed: 2\n", "x.yaml:3: 'seed' is given twice; first on line 2"),
        ("run: {}\nrun: {}\n", "x.yaml:2: 'run' is given twice; first on line 1"),
        ("a:\n- {b: 1, b: 2}\n", "x.yaml:2: 'b' is given twice; first on line 2"),
        ("a: b: c", "x.yaml:1: not valid YAML: mapping values are not allowed here"),
        ("ok: 1\na: [1", "x.yaml:2: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: *gone", "x.yaml:1: not valid YAML: found undefined alias 'gone'"),
        ("a: &a [*a]", "x.yaml: not valid YAML: Circular reference detected"),
        ("\x00", "x.yaml: not valid YAML: unacceptable character #x0000"),
        ("? [1]\n: 2", "x.yaml:1: not valid YAML: found unhashable key"),
        ("a: !!set {b}", "x.yaml: only plain text, numbers, lists and mappings"),
        ("a: !!python/name:os.system", "x.yaml:1: not valid YAML: could not determine a constructor"),
        ("a: 1\n---\nb: 2", "x.yaml:2: not valid YAML: but found another document"),
        ("a: " + "[" * 5000, "x.yaml: is nested too deeply"),
        (BOMB, "x.yaml: has more than 100000 entries when its aliases are written out"),
    ],
)
def test_what_is_not_yaml_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
