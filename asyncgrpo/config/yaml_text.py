"""YAML in and out, by the rules of YAML 1.2's core schema: `1e-6` is a number, `on` is text, nothing is a date.

Parsing keeps the line of every setting and refuses a key that is given twice, which PyYAML would let the later one win.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from asyncgrpo.errors import ConfigError

_NO_WRAP = 10**9
_MOST_NODES = 100_000  # with every alias written out


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file. `lines` has the line number of `("section",)` and of `("section", "field")`."""

    value: Any
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)


class _CoreLoader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML declares it without ClassVar)


for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("tag:yaml.org,2002:merge", r"<<", ["<"]),
):
    _CoreLoader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)


def _decimal(loader: _CoreLoader, node: yaml.ScalarNode) -> int:
    """In YAML 1.2 a leading zero does not make a number octal."""
    return int(loader.construct_scalar(node))


_CoreLoader.add_constructor("tag:yaml.org,2002:int", _decimal)


def parse(text: str, name: str) -> Document:
    """Parse one document. `name` stands for it in errors.

    Raises ConfigError with the line for text that is not YAML and for keys given twice.
    """
    try:
        loader = _CoreLoader(text)
        node = loader.get_single_node()
        if node is None:
            return Document(None)
        _refuse_duplicates(node, name, set())
        if _written_out(node, {}) > _MOST_NODES:
            raise ConfigError(f"{name}: has more than {_MOST_NODES} entries when its aliases are written out")
        value = loader.construct_document(node)
        json.dumps(value)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        raise ConfigError(f"{where}: not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: is nested too deeply") from error
    except TypeError as error:
        raise ConfigError(f"{name}: only plain text, numbers, lists and mappings: {error}") from error
    return Document(value, _lines(node))


def dump(value: Any) -> str:
    """The value on one line, such that `parse` gives it back."""
    wanted = json.dumps(value, sort_keys=True)
    for style in (None, '"'):
        text = yaml.safe_dump(
            value, default_flow_style=True, default_style=style, width=_NO_WRAP, allow_unicode=True, sort_keys=False
        )
        text = text.removesuffix("...\n").strip()
        if "\n" not in text and json.dumps(parse(text, "value").value, sort_keys=True) == wanted:
            return text
    raise ConfigError(f"cannot be written as YAML: {value!r}")


def _refuse_duplicates(node: yaml.Node, name: str, seen: set[int]) -> None:
    if id(node) in seen:  # an alias, perhaps to a node that contains it
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _refuse_duplicates(child, name, seen)
    if isinstance(node, yaml.MappingNode):
        first: dict[Any, int] = {}
        for key, child in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in first:
                    raise ConfigError(f"{name}:{line}: {key.value!r} is given twice; first on line {first[key.value]}")
                first[key.value] = line
            _refuse_duplicates(child, name, seen)


def _written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """How many nodes there are when every alias is replaced by what it stands for."""
    if id(node) not in known:
        known[id(node)] = 0  # for a node that contains itself, which is refused elsewhere
        pairs = isinstance(node, yaml.MappingNode)
        inner = [part for pair in node.value for part in pair] if pairs else node.value
        children = inner if isinstance(node, yaml.CollectionNode) else []
        known[id(node)] = 1 + sum(_written_out(child, known) for child in children)
    return known[id(node)]


def _lines(node: yaml.Node) -> dict[tuple[str, ...], int]:
    lines: dict[tuple[str, ...], int] = {}
    if not isinstance(node, yaml.MappingNode):
        return lines
    for key, child in node.value:
        lines[(str(key.value),)] = key.start_mark.line + 1
        if isinstance(child, yaml.MappingNode):
            for inner, _ in child.value:
                lines[str(key.value), str(inner.value)] = inner.start_mark.line + 1
    return lines
