"""Groups come back from disk bit for bit."""

from __future__ import annotations

import json
import math
import struct
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disk_cases import largest_file
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import numpy as tensors

from asyncgrpo.checkpoint.groups import read_groups, read_replayable, write_groups, write_replayable
from asyncgrpo.errors import CheckpointError
from asyncgrpo.types import Completion, Group, Prompt, Replayable, Sample

any_float = st.one_of(st.floats(), st.sampled_from((math.nan, -math.nan, -0.0, 5e-324, -math.inf)))
any_text = st.text(st.characters(exclude_categories=()))  # half surrogate pairs as well
names = st.text(min_size=1)
json_values = st.one_of(st.none(), st.integers(), any_text, st.floats(allow_nan=False), st.lists(st.booleans()))


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    count = draw(st.integers(0, 5))

    def numbers(elements: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(elements, min_size=count, max_size=count))

    int32 = st.integers(-(2**31), 2**31 - 1)
    sampled = np.array([index == 0 or is_sampled for index, is_sampled in enumerate(numbers(st.booleans()))], np.bool_)
    before = np.maximum.accumulate(np.where(sampled, np.arange(count), 0))
    return Sample(
        completion=Completion(
            token_ids=np.array(numbers(int32), np.int32),
            behaviour_logprobs=np.where(sampled, np.array(numbers(st.floats(width=32)), np.float32), np.float32(0)),
            versions=np.array(numbers(int32), np.int32)[before] if count else [],
            sampled=sampled,
            finish_reason=draw(st.sampled_from(("stop", "length"))),  # type: ignore[arg-type]
            engine=draw(names),
            started_at=draw(any_float),
            finished_at=draw(any_float),
        ),
        text=draw(any_text),
        rewards=draw(st.dictionaries(names, st.one_of(st.none(), any_float), max_size=3)),
        reward=draw(any_float),
        extra=draw(st.dictionaries(names, json_values, max_size=2)),
    )


class NotJson:
    """A value of a column that no file format has."""


@st.composite
def groups(draw: st.DrawFn) -> Group:
    epoch, row = draw(st.integers(0, 2**70)), draw(st.integers(0, 2**70))
    return Group(
        group_id=draw(st.integers(0, 2**70)),
        prompt=Prompt(
            prompt_id=f"{epoch}-{row}",
            epoch=epoch,
            row=row,
            prompt=draw(st.one_of(any_text, st.just([{"role": "user", "content": "x"}]))),
            token_ids=tuple(draw(st.lists(st.integers(0, 2**62), max_size=4))),
            columns=draw(st.sampled_from(({}, {"answer": NotJson()}, {"big": 10**40, "b": b"\xff"}))),
        ),
        samples=tuple(draw(st.lists(samples(), max_size=3))),
        start_version=draw(st.integers(0, 2**40)),
        admitted_at=draw(any_float),
        entered_at=draw(any_float),
        logged=draw(st.dictionaries(names, st.tuples(st.floats(allow_nan=False), st.integers(1, 2**70)), max_size=2)),
    )


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def exact(group: Group) -> tuple[Any, ...]:
    """Everything of a group, such that only what is the same bit for bit is equal."""
    return (
        *(group.group_id, group.prompt, group.start_version, bits(group.admitted_at), bits(group.entered_at)),
        *((name, bits(total), count) for name, (total, count) in group.logged.items()),
        *(
            (
                *(
                    getattr(sample.completion, name).tobytes()
                    for name in ("token_ids", "behaviour_logprobs", "versions", "sampled")
                ),
                *(sample.completion.finish_reason, sample.completion.engine, sample.text, bits(sample.reward)),
                *(bits(sample.completion.started_at), bits(sample.completion.finished_at)),
                *((name, None if value is None else bits(value)) for name, value in sample.rewards.items()),
                json.dumps(sample.extra),
            )
            for sample in group.samples
        ),
    )


def distinct(each: Any) -> tuple[int, int]:
    group = each.group if isinstance(each, Replayable) else each
    return group.prompt.epoch, group.prompt.row


def prompt_of(*of: Group) -> Any:
    by_place = {(group.prompt.epoch, group.prompt.row): group.prompt for group in of}
    return lambda epoch, row: by_place[epoch, row]


quickly = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quickly
@given(st.lists(groups(), max_size=3, unique_by=distinct))
@example([])
def test_groups_come_back_bit_for_bit(given: list[Group]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_groups(Path(folder), "buffer", given)
        again = read_groups(Path(folder), "buffer", prompt_of(*given))
    assert [exact(group) for group in again] == [exact(group) for group in given]


@st.composite
def entries(draw: st.DrawFn) -> Replayable:
    group = draw(groups())
    count = len(group.samples)
    values = draw(st.lists(st.floats(width=32), min_size=count, max_size=count))
    return Replayable(group=group, advantages=np.array(values, np.float32), uses=draw(st.integers(1, 2**70)))


@quickly
@given(st.lists(entries(), max_size=3, unique_by=distinct))
def test_replayable_groups_come_back_bit_for_bit(given: list[Replayable]) -> None:
    def all_of(entry: Replayable) -> tuple[Any, ...]:
        return exact(entry.group), entry.advantages.dtype, entry.advantages.tobytes(), entry.uses

    with tempfile.TemporaryDirectory() as folder:
        write_replayable(Path(folder), "replay", given)
        again = read_replayable(Path(folder), "replay", prompt_of(*(entry.group for entry in given)))
    assert [all_of(entry) for entry in again] == [all_of(entry) for entry in given]


def one(token_ids: tuple[int, ...] = (5, 6)) -> Group:
    completion = Completion(
        token_ids=(7,),  # type: ignore[arg-type]
        behaviour_logprobs=(-1.0,),  # type: ignore[arg-type]
        versions=(3,),  # type: ignore[arg-type]
        finish_reason="stop",
        engine="engine-0",
        started_at=10.0,
        finished_at=12.0,
    )
    return Group(
        group_id=4,
        prompt=Prompt(prompt_id="1-2", epoch=1, row=2, prompt="hi", token_ids=token_ids, columns={"a": 1}),
        samples=(Sample(completion=completion, text="x", rewards={"f": 1.0}, reward=1.0),),
        start_version=3,
        admitted_at=9.0,
        entered_at=13.0,
    )


def test_what_was_written_before_there_were_turns_was_all_sampled(tmp_path: Path) -> None:
    write_groups(tmp_path, "buffer", [one()])
    file = tmp_path / "buffer.safetensors"
    stored = tensors.load(file.read_bytes())
    assert stored.pop("sampled").tolist() == [True]
    file.write_bytes(tensors.save(stored))
    (group,) = read_groups(tmp_path, "buffer", prompt_of(one()))
    assert exact(group) == exact(one())


@pytest.mark.parametrize(
    ("prompt", "opening", "whole"),
    [
        ("hi", " there", "hi there"),
        ([{"role": "user", "content": "hi"}], " there", [{"role": "user", "content": "hi there"}]),
        (
            [{"role": "user", "content": "hi"}],
            [{"role": "user", "content": "you"}],
            [{"role": "user", "content": "hi"}, {"role": "user", "content": "you"}],
        ),
    ],
)
def test_a_prompt_that_its_environment_opened_comes_back_as_it_was(
    prompt: Any, opening: Any, whole: Any, tmp_path: Path
) -> None:
    of_dataset = replace(one().prompt, prompt=prompt)
    opened = replace(of_dataset, prompt=of_dataset.opened(opening), token_ids=(7, 8, 9), opening=opening)
    write_groups(tmp_path, "buffer", [replace(one(), prompt=opened)])
    (group,) = read_groups(tmp_path, "buffer", lambda epoch, row: of_dataset)
    assert group.prompt == opened
    assert (group.prompt.prompt, group.prompt.token_ids) == (whole, (7, 8, 9))


def test_times_are_shifted_to_the_clock_of_another_process(tmp_path: Path) -> None:
    write_groups(tmp_path, "buffer", [one()])
    (group,) = read_groups(tmp_path, "buffer", prompt_of(one()), clock_shift=100.0)
    completion = group.samples[0].completion
    times = (group.admitted_at, completion.started_at, completion.finished_at, group.entered_at)
    assert times == (109.0, 110.0, 112.0, 113.0)


def test_a_dataset_that_has_changed_is_refused_by_row(tmp_path: Path) -> None:
    write_groups(tmp_path, "buffer", [one()])
    with pytest.raises(CheckpointError, match=r"row 2 of the dataset has another prompt than when"):
        read_groups(tmp_path, "buffer", prompt_of(one(token_ids=(5, 7))))


def test_a_change_that_is_allowed_keeps_what_was_generated_from(tmp_path: Path) -> None:
    write_groups(tmp_path, "buffer", [one()])
    changed = replace(one(token_ids=(5, 7, 8)).prompt, prompt="ho")
    (group,) = read_groups(tmp_path, "buffer", lambda epoch, row: changed, allow_changed=True)
    assert group.prompt == replace(changed, token_ids=(5, 6))


def test_a_full_disk_is_an_os_error(tmp_path: Path) -> None:
    with largest_file(100), pytest.raises(OSError, match="File too large"):
        write_groups(tmp_path, "buffer", [one()])
