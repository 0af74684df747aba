import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from observe_cases import group, sample
from rich.console import Console

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.browsing import Ranges, Wanted, contrasts, first_of, versions_beside
from asyncgrpo.observe.recorder import Recorder, rollout_file
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.sample_tables import as_texts
from asyncgrpo.observe.samples import RecordedSample, prompt_text, read_samples
from asyncgrpo.types import Group, PromptText


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Two steps of two samples each, a group dropped beside the second, one left over at the end."""
    folder = RunFolder(tmp_path)
    folder.rollouts_dir.mkdir()
    recorder = Recorder(folder)
    recorder.write_rollouts(1, 0, [of("What is 2+2?", 1, [(0,), (0, 0)], [0.5, -1.0])], [0.7, -0.7])
    late = of("Chat", 3, [(0, 0, 1)], [math.nan])
    recorder.write_rollouts(
        2, 2, [of("Say HELLO", 2, [(0, 1, 1), (1,)], [2.0, 0.0])], [1, -1], [(late, "dropped:stale")]
    )
    recorder.write_untrained([(of("What is 2+2?", 4, [(3,)], [1.5]), "dropped:run_ended")])
    return folder


def of(prompt: PromptText, group_id: int, versions: Sequence[Sequence[int]], rewards: Sequence[float]) -> Group:
    samples = [
        sample(reward, v, text=f"{group_id}:{i}", finish_reason="length" if len(v) == 2 else "stop")
        for i, (v, reward) in enumerate(zip(versions, rewards, strict=True))
    ]
    return group(samples, group_id=group_id, prompt=prompt)


def found(folder: RunFolder, **conditions: Any) -> list[str]:
    wanted = Wanted(**conditions)
    return [s.completion for s in read_samples(folder, steps=wanted.has_step, rows=wanted.has)]


def test_a_sample_is_read_with_all_that_is_known_of_it(folder: RunFolder) -> None:
    samples = list(read_samples(folder))
    assert [(s.step, s.completion, s.fate) for s in samples] == [
        (1, "1:0", "trained"),
        (1, "1:1", "trained"),
        (2, "2:0", "trained"),
        (2, "2:1", "trained"),
        (2, "3:0", "dropped:stale"),
        (None, "4:0", "dropped:run_ended"),
    ]
    mixed, dropped = samples[2], samples[4]
    assert mixed == RecordedSample(
        step=2, prompt_id="0-2", group_id=2, sample=0, prompt="Say HELLO", is_conversational=False, completion="2:0",
        tokens=3, given=0, versions={0: 1, 1: 2}, rewards={"length": 2.0}, reward=2.0, advantage=1.0,
        finish_reason="stop", engine="engine-0", fate="trained", staleness=2, seconds=1.5, extra={},
    )  # fmt: skip
    assert (mixed.version, dropped.version) == (1, 0)
    assert (dropped.reward, dropped.advantage, dropped.staleness) == (None, None, None)


def test_tokens_that_were_given_are_told_apart(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.rollouts_dir.mkdir()
    turns = group([sample(1.0, (2, 2, 2, 3), sampled=(True, False, False, True)), sample(0.0, (3,))])
    Recorder(folder).write_rollouts(1, 3, [turns], [0.5, -0.5])
    played, plain = read_samples(folder)
    assert (played.tokens, played.given, played.versions) == (4, 2, {2: 1, 3: 1})
    assert (plain.tokens, plain.given, plain.versions) == (1, 0, {3: 1})
    texts = Console(width=200)
    with texts.capture() as shown:
        texts.print(*as_texts([played, plain]))
    assert "4 tokens (2 of them given, not sampled) in 1.5 s" in shown.get()
    assert "1 tokens in 1.5 s" in shown.get()


@pytest.mark.parametrize(
    ("conditions", "completions"),
    [
        ({"steps": Ranges.parse("2-3")}, ["2:0", "2:1", "3:0"]),
        ({"steps": Ranges.parse("-1")}, ["1:0", "1:1"]),
        ({"staleness": Ranges.parse("1-")}, ["2:0", "2:1"]),
        ({"staleness": Ranges.parse("2")}, ["2:0"]),
        ({"min_reward": 0.5}, ["1:0", "2:0", "4:0"]),
        ({"max_reward": 0.0}, ["1:1", "2:1"]),
        ({"min_reward": 0.0, "max_reward": 0.5}, ["1:0", "2:1"]),
        ({"prompt": "say hello"}, ["2:0", "2:1"]),
        ({"prompt": "0-4"}, ["4:0"]),
        ({"group": 3}, ["3:0"]),
        ({"finish_reason": "length"}, ["1:1"]),
        ({"fate": "dropped"}, ["3:0", "4:0"]),
        ({"fate": "dropped:stale"}, ["3:0"]),
        ({"fate": "trained", "prompt": "what"}, ["1:0", "1:1"]),
        ({"engine": "engine-1"}, []),
        ({"engine": "engine-0", "group": 4}, ["4:0"]),
    ],
)
def test_only_what_meets_every_condition(folder: RunFolder, conditions: Any, completions: list[str]) -> None:
    assert found(folder, **conditions) == completions


def test_samples_in_order(folder: RunFolder) -> None:
    def order(count: int | None, *how: Any, descending: bool = False) -> list[str]:
        return [s.completion for s in first_of(read_samples(folder), count, *how, descending=descending)]

    assert order(3) == ["1:0", "1:1", "2:0"]
    assert order(2, "step", descending=True) == ["2:0", "2:1"]
    assert order(2, "reward") == ["1:1", "2:1"]
    assert order(None, "reward", descending=True) == ["2:0", "4:0", "1:0", "2:1", "1:1", "3:0"]
    assert order(1, "staleness", descending=True) == ["2:0"]


def test_no_more_files_are_read_than_needed(folder: RunFolder) -> None:
    rollout_file(folder, 2).write_bytes(b"torn")
    unread: list[str] = []
    assert len(first_of(read_samples(folder, on_unreadable=unread.append), 2)) == 2
    assert unread == []


def test_a_torn_file_costs_its_own_samples(folder: RunFolder) -> None:
    path = rollout_file(folder, 2)
    path.write_bytes(path.read_bytes()[:-40])
    unread: list[str] = []
    samples = list(read_samples(folder, on_unreadable=unread.append))
    assert [s.completion for s in samples] == ["1:0", "1:1", "4:0"]
    (said,) = unread
    assert said.startswith(f"cannot read {path}: ")
    assert said.endswith("; it is left out")
    assert "\n" not in said


def test_what_a_run_in_progress_has_not_finished_or_put_aside_is_not_looked_at(folder: RunFolder) -> None:
    (folder.rollouts_dir / ".step_000003.parquet.77.tmp").write_bytes(b"half")
    (folder.rollouts_dir / "step_000003.parquet.rewound-1").write_bytes(b"aside")
    unread: list[str] = []
    assert len(list(read_samples(folder, on_unreadable=unread.append))) == 6
    assert unread == []


def test_a_folder_without_rollouts_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"rollouts holds no rollouts; is .* the folder of a run with observe\."):
        next(read_samples(RunFolder(tmp_path)))


def test_a_chat_is_shown_message_by_message(folder: RunFolder) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"text": "x"}]}]
    Recorder(folder).write_rollouts(1, 0, [of(messages, 1, [(0,)], [0.0])], [0.0])
    assert prompt_text(next(iter(read_samples(folder)))) == 'system: Be brief.\nuser: [{"text": "x"}]'


def test_two_versions_on_one_prompt(folder: RunFolder) -> None:
    (contrast,) = contrasts(read_samples(folder), 0, 3)
    assert contrast.prompt.prompt == "What is 2+2?"
    assert [s.completion for s in contrast.before] == ["1:0", "1:1"]
    assert [s.completion for s in contrast.after] == ["4:0"]
    assert list(contrasts(read_samples(folder), 0, 1)) == []
    assert versions_beside(read_samples(folder), 0) == [3]
    assert versions_beside(read_samples(folder), 1) == []


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("3", [3], [2, 4]),
        ("3-7", [3, 7], [2, 8]),
        ("3-", [3, 10**9], [2]),
        ("-7", [0, 7], [8]),
        ("1, 5-6", [1, 5, 6], [2, 4, 7]),
    ],
)
def test_ranges(text: str, inside: list[int], outside: list[int]) -> None:
    ranges = Ranges.parse(text)
    assert [number for number in inside + outside if number in ranges] == inside
    assert None not in ranges


@pytest.mark.parametrize("text", ["", "-", "x", "3--7", "7-3", "1,", "3.5"])
def test_no_ranges(text: str) -> None:
    with pytest.raises(ValueError, match=r"no range|ends before"):
        Ranges.parse(text)
