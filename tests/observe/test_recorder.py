import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from disk_cases import largest_file
from observe_cases import group, measures, report, sample

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.recorded_groups import read_trained_groups
from asyncgrpo.observe.recorder import ROLLOUT_SCHEMA, Recorder, _column, read_metrics
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.steps import step_record


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.rollouts_dir.mkdir()
    return folder


def test_step_is_one_line_of_strict_json(folder: RunFolder) -> None:
    recorder = Recorder(folder)
    recorder.append_step({"step": 1, "reward_mean": float("nan"), "loss": float("inf"), "verdict": "balanced"})
    recorder.append_step({"step": 2, "reward_mean": np.float32(0.5), "loss": None, "samples": np.int64(4)})  # type: ignore[dict-item]
    first, second = folder.metrics_file.read_text().splitlines()
    assert first == '{"step": 1, "reward_mean": null, "loss": null, "verdict": "balanced"}'
    assert json.loads(second) == {"step": 2, "reward_mean": 0.5, "loss": None, "samples": 4}


def test_record_of_a_step_is_read_back(folder: RunFolder) -> None:
    record = step_record(1, [group([sample(0.0), sample(1.0)])], 0, report(loss=0.25), measures())
    Recorder(folder).append_step(record)
    (read,) = read_metrics(folder.metrics_file)
    assert list(read) == list(record)
    assert (read["reward_mean"], read["loss"], read["reward_standard_error"]) == (0.5, 0.25, None)


def test_line_cut_short_by_a_kill_is_left_out(folder: RunFolder) -> None:
    folder.metrics_file.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_metrics(folder.metrics_file) == [{"step": 1}, {"step": 2}]
    folder.metrics_file.write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 2, is not JSON"):
        read_metrics(folder.metrics_file)


def test_missing_metrics_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"cannot read .*metrics\.jsonl: No such file .* folder of a run"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_rollouts_are_read_back(folder: RunFolder) -> None:
    messages = [{"role": "user", "content": "naïve?"}]
    trained = group(
        [
            sample(1.0, (1, 2), text="half \ud83d", rewards={"exact": 1.0, "form": None}),
            sample(0.0, (2,), finish_reason="length"),
        ],
        group_id=7,
        prompt=messages,
    )
    late = group([sample(float("nan"), (0,))], group_id=8)
    logged = dataclasses.replace(trained.samples[1], extra={"why": "half \ud83d", "tries": [1, None]})
    trained = dataclasses.replace(trained, samples=(trained.samples[0], logged))
    path = Recorder(folder).write_rollouts(
        3, 2, [trained], np.array([0.5, -0.5]), [(late, "dropped:stale")], np.array([-0.25, -0.75, -2.0, -9.0])
    )
    assert path == folder.rollouts_dir / "step_000003.parquet"
    table = pq.read_table(path)
    assert table.schema.equals(ROLLOUT_SCHEMA)
    assert table.schema.metadata[b"schema_version"] == b"1"
    assert float(table.schema.metadata[b"monotonic_to_unix_seconds"]) > 0
    first, second, third = table.to_pylist()
    assert json.loads(second["extra"]) == {"why": "half \ud83d", "tries": [1, None]}
    assert first == {
        "step": 3,
        "version": 2,
        "prompt_id": "0-7",
        "group_id": 7,
        "sample": 0,
        "prompt": json.dumps(messages, ensure_ascii=False),
        "conversational": True,
        "prompt_token_ids": [1, 2],
        "completion": "half ?",
        "token_ids": [10, 11],
        "behaviour_logprobs": [-0.5, -1.0],
        "proximal_logprobs": [-0.25, -0.75],
        "versions": [1, 2],
        "sampled": [True, True],
        "rewards": [("exact", 1.0), ("form", None)],
        "reward": 1.0,
        "extra": None,
        "advantage": 0.5,
        "finish_reason": "stop",
        "engine": "engine-0",
        "start_version": 0,
        "started_at": 1.0,
        "finished_at": 2.5,
        "admitted_at": 1.0,
        "entered_at": 3.0,
        "fate": "trained",
        "staleness_max": 1,
    }
    assert (second["sample"], second["advantage"], second["staleness_max"]) == (1, -0.5, 0)
    assert (third["step"], third["version"], third["advantage"], third["staleness_max"]) == (None, None, None, None)
    assert (second["proximal_logprobs"], third["proximal_logprobs"]) == ([-2.0], None)
    assert (third["fate"], third["prompt"], third["conversational"]) == ("dropped:stale", "Say hi", False)
    assert [entry.name for entry in folder.rollouts_dir.iterdir()] == ["step_000003.parquet"]


def test_tokens_between_turns_come_back_as_they_were(folder: RunFolder) -> None:
    turns = sample(1.0, (1, 1, 1, 2), sampled=(True, False, False, True))
    given = group([turns, sample(0.0, (2,))])
    path = Recorder(folder).write_rollouts(1, 2, [given], [0.5, -0.5])
    assert pq.read_table(path)["sampled"].to_pylist() == [[True, False, False, True], [True]]
    (again,) = read_trained_groups(folder, 1)
    assert [each.completion for each in again.samples] == [each.completion for each in given.samples]


def test_a_file_from_before_there_were_turns_is_read_as_all_sampled(folder: RunFolder) -> None:
    given = group([sample(1.0, (1, 2)), sample(0.0, (2,))])
    path = Recorder(folder).write_rollouts(1, 2, [given], [0.5, -0.5])
    pq.write_table(pq.read_table(path).drop_columns(["sampled"]), path)
    (again,) = read_trained_groups(folder, 1)
    assert [each.completion for each in again.samples] == [each.completion for each in given.samples]


def test_groups_left_over_are_written_once(folder: RunFolder) -> None:
    path = Recorder(folder).write_untrained([(group([sample(1.0), sample(2.0)]), "dropped:run_ended")])
    assert path.name == "untrained.parquet"
    assert pq.read_table(path)["fate"].to_pylist() == ["dropped:run_ended"] * 2


def test_wrong_number_of_advantages_is_refused(folder: RunFolder) -> None:
    with pytest.raises(ValueError, match="1 advantages for 2 trained samples"):
        Recorder(folder).write_rollouts(1, 0, [group([sample(1.0), sample(0.0)])], [0.5])


def test_full_disk_names_the_path_and_leaves_no_half_file(folder: RunFolder) -> None:
    recorder = Recorder(folder)
    with largest_file(200):
        with pytest.raises(RunFolderError, match=r"cannot write .*step_000001\.parquet: .*; free disk space"):
            recorder.write_rollouts(1, 0, [group([sample(1.0), sample(0.0)])], [0.5, -0.5])
        with pytest.raises(RunFolderError, match=r"cannot write .*metrics\.jsonl: .*; free disk space"):
            recorder.append_step({"verdict": "x" * 300})
    assert list(folder.rollouts_dir.iterdir()) == []


def test_lists_that_are_empty_or_absent_are_told_apart() -> None:
    kind = ROLLOUT_SCHEMA.field("proximal_logprobs").type
    written = _column([None, [], np.array([-0.5, np.nan], dtype=np.float32), (1.0,), None], kind)
    written.validate(full=True)
    first, second, (third, nan), *rest = written.to_pylist()
    assert (first, second, third, rest) == (None, [], -0.5, [[1.0], None])
    assert math.isnan(nan)
    assert _column([None, None], kind).to_pylist() == [None, None]
    assert _column([[], ()], kind).to_pylist() == [[], []]
    assert _column([], kind).to_pylist() == []
    assert _column([[True, False], [True]], ROLLOUT_SCHEMA.field("sampled").type).to_pylist() == [[True, False], [True]]
