"""What the page is told of a run folder."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from page_cases import HOSTILE, START, STEP_SECONDS, evaluation, group, record, sample, write_run, write_step

from asyncgrpo.observe.evaluations import append_evaluation
from asyncgrpo.observe.page import curves, rollout_rows, timeline
from asyncgrpo.observe.page.curves import meaning_of
from asyncgrpo.observe.page.reader import BadQuestion, RunReader
from asyncgrpo.observe.page.rollouts import Missing
from asyncgrpo.observe.recorder import Recorder
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.testing.tiny import make_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "demo")


@pytest.fixture
def reader(folder: RunFolder) -> RunReader:
    return RunReader(folder)


def ask(reader: RunReader, name: str, **query: Any) -> dict[str, Any]:
    return reader.answer(name, {key.rstrip("_"): str(value) for key, value in query.items()})


def test_which_run_it_is(folder: RunFolder, reader: RunReader) -> None:
    answer = ask(reader, "run")
    assert (answer["name"], answer["steps"], answer["target_steps"], answer["unreadable"]) == ("demo", 24, 24, 0)
    assert answer["newest"]["step"] == 24
    before = answer["revision"]
    assert ask(reader, "run")["revision"] == before
    Recorder(folder).append_step(record(25))
    assert ask(reader, "run")["revision"] != before


def state(folder: RunFolder) -> str:
    said: str = ask(RunReader(folder), "run")["state"]
    return said


def test_whether_it_goes_on(folder: RunFolder) -> None:
    assert state(folder) == "running"  # written just now
    for file in (folder.metrics_file, folder.spans_file):
        os.utime(file, (START, START))
    assert state(folder) == "stopped"
    folder.summary_json.write_text(json.dumps({"steps": 24, "target_steps": 24, "verdict": "balanced"}))
    assert state(folder) == "finished"
    assert ask(RunReader(folder), "run")["verdict"] == "balanced"
    os.utime(folder.summary_json, (START - 3600, START - 3600))  # as a copy may have it
    assert state(folder) == "finished"
    folder.summary_json.write_text(json.dumps({"steps": 24, "target_steps": 30}))
    assert state(folder) == "interrupted"
    os.utime(folder.summary_json, (START - 3600, START - 3600))  # of the start before this one
    assert state(folder) == "stopped"
    folder.spans_file.unlink()
    folder.metrics_file.unlink()
    assert state(folder) == "starting"


def test_curves_of_the_charts(reader: RunReader) -> None:
    series = ask(reader, "series")
    assert (series["rows"], series["width"], series["step"]) == (24, 1, list(range(1, 25)))
    assert series["time"][0] == START + STEP_SECONDS
    assert series["fields"]["reward_mean/correct"]["mean"][0] == pytest.approx(record(1)["reward_mean"] * 1.2, rel=1e-5)
    assert series["fields"]["staleness_tokens/3"]["mean"][:3] == [0.0, 40.0, 0.0]
    assert "learner/ratio/mean" not in series["fields"]
    assert [each["step"] for each in series["evaluations"]] == [0, 8, 16, 24]
    assert "prompt_rewards" not in series["evaluations"][0]


def test_curves_by_name(reader: RunReader) -> None:
    assert set(ask(reader, "series", fields='["learner/ratio/mean","nonsense"]')["fields"]) == {"learner/ratio/mean"}
    every = ask(reader, "series", fields="[]")["fields"]
    assert {"loss", "learner/ratio/mean"} <= set(every)
    assert "verdict" not in every
    with pytest.raises(BadQuestion, match="no list of names"):
        ask(reader, "series", fields="loss")


def test_a_long_run_is_thinned_with_its_extremes(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "POINTS", 8)
    recorder = Recorder(folder)
    folder.metrics_file.unlink()
    reader = RunReader(folder)
    for step in range(1, 101):
        recorder.append_step(record(step, reward=100.0 if step == 57 else float(step % 2)))
        if step in (30, 60):  # also when it is read in between
            ask(reader, "run")
    series = ask(reader, "series")
    assert (series["rows"], series["width"], len(series["step"])) == (100, 16, 7)
    reward = series["fields"]["reward_mean"]
    assert max(reward["max"]) == 100.0
    assert min(reward["min"]) == 0.0
    assert reward["mean"][0] == 0.5


def test_a_run_that_went_back_is_read_anew(folder: RunFolder, reader: RunReader) -> None:
    ask(reader, "series")
    lines = folder.metrics_file.read_bytes().splitlines(keepends=True)
    folder.metrics_file.write_bytes(b"".join(lines[:10]))
    for step in range(11, 30):
        Recorder(folder).append_step(record(step, reward=0.25))
    series = ask(reader, "series")
    assert series["step"] == list(range(1, 30))
    assert series["fields"]["reward_mean"]["mean"][10:] == [0.25] * 19


def test_lines_that_are_no_records_are_counted(folder: RunFolder, reader: RunReader) -> None:
    with open(folder.metrics_file, "a") as file:
        file.write('{"step": \n[1]\n{"step": 25, "reward_mean": 1')
    assert (ask(reader, "run")["steps"], ask(reader, "run")["unreadable"]) == (24, 2)


def test_an_evaluation_file_that_is_torn_costs_the_evaluations_only(folder: RunFolder, reader: RunReader) -> None:
    folder.evaluation_file.write_text(f"nonsense\n{json.dumps(evaluation(8, 0.5))}\n{{}}\n")
    series = ask(reader, "series")
    assert (series["rows"], [each["step"] for each in series["evaluations"]]) == (24, [8])
    assert series["evaluations_error"] == "2 lines of evaluation.jsonl are no evaluation's record"


def test_evaluations_are_read_as_they_come_without_the_rewards_of_prompts(folder: RunFolder, reader: RunReader) -> None:
    assert "prompt_rewards" not in ask(reader, "series")["evaluations"][0]
    with open(folder.evaluation_file, "a") as file:
        file.write(json.dumps(evaluation(32, 1.0)) + '\n{"step": 40, "rew')
    series = ask(reader, "series")
    assert [each["step"] for each in series["evaluations"]] == [0, 8, 16, 24, 32]
    assert "evaluations_error" not in series, "half a line may become a whole one"
    folder.evaluation_file.write_text("")
    append_evaluation(folder.evaluation_file, evaluation(0, 0.5))  # the run went back, and on
    assert [each["reward_mean"] for each in ask(reader, "series")["evaluations"]] == [0.5]


def test_what_is_no_number_is_none(folder: RunFolder, reader: RunReader) -> None:
    odd = record(25, 1.0) | {"loss": [1, 2], "gradient_norm": None, "policy_entropy_nats": 10**400}
    with open(folder.metrics_file, "a") as file:
        file.write(json.dumps(odd) + "\n" + json.dumps({"step": 26}) + '\n{"step": 27, "loss": NaN}\n')
    series = ask(reader, "series")
    assert series["step"][-2:] == [25, 26]
    for name in ("loss", "gradient_norm", "policy_entropy_nats"):
        assert series["fields"][name]["mean"][-2:] == [None, None]
    assert series["fields"]["reward_mean"]["mean"][-2:] == [1.0, None]
    assert ask(reader, "run")["unreadable"] == 1


def test_every_number_is_explained(reader: RunReader) -> None:
    rows = {each["name"]: each for each in ask(reader, "numbers")["numbers"]}
    assert rows["loss"]["meaning"].startswith("loss, averaged")
    assert rows["staleness_tokens/2"]["meaning"] == "tokens trained at that staleness"
    assert (rows["step"]["first"], rows["step"]["newest"], rows["step"]["min"], rows["step"]["max"]) == (1, 24, 1, 24)
    assert meaning_of("learner/staleness_3/kl/x").startswith("a metric of the tokens trained at staleness k")
    assert meaning_of("unheard_of") == ""


def test_the_timeline_has_every_span_of_a_window(reader: RunReader) -> None:
    start = START + 2 * STEP_SECONDS
    answer = ask(reader, "timeline", from_=start, to=start + STEP_SECONDS)
    lanes = {lane["name"]: lane["spans"] for lane in answer["lanes"]}
    assert list(lanes) == ["learner", "engine-0", "engine-1"]
    named = [(answer["states"][state], begin, end, step) for begin, end, state, step in lanes["learner"]]
    assert named == [
        ("waiting", 0.0, 5.0, 3),
        ("training", 5.0, 18.0, 3),
        ("snapshot", 18.0, 19.0, 3),
        ("waiting", 19.0, 20.0, 3),
    ]
    assert answer["flow"]["at"] == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    assert answer["flow"]["requests"]["engine-1"][:3] == [13.0, 11.0, 9.0]
    assert answer["bounds"] == [START, START + 24 * STEP_SECONDS + 0.4]
    assert answer["proposed"] == [START + 16 * STEP_SECONDS + 5, answer["bounds"][1]]  # the last 8 steps that trained


def test_a_crowded_window_has_the_share_of_every_state(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MOST_SPANS", 50)
    monkeypatch.setattr(timeline, "SLOTS", 48)
    answer = ask(RunReader(folder), "timeline", from_=START, to=START + 24 * STEP_SECONDS)
    (learner,) = (lane for lane in answer["lanes"] if lane["name"] == "learner")
    shares = learner["shares"]
    assert {name: sum(values) / 48 for name, values in shares.items()} == pytest.approx(
        {"waiting": 0.3, "training": 0.65, "snapshot": 0.05}
    )
    # 48 slots of 10 s: the first has 5 s of waiting and 5 s of training, the second 8, 1 and 1.
    assert [shares[name][:2] for name in ("waiting", "training", "snapshot")] == [[0.5, 0.1], [0.5, 0.8], [0.0, 0.1]]
    (engine,) = (lane for lane in answer["lanes"] if lane["name"] == "engine-0")
    assert len(engine["spans"]) == 24  # few enough to be shown one by one


def test_a_timeline_that_was_put_aside_is_still_read(folder: RunFolder, reader: RunReader) -> None:
    bounds = ask(reader, "timeline")["bounds"]
    folder.spans_file.rename(timeline.former(folder.spans_file))
    later = {"lane": "learner", "state": "training", "from": bounds[1] + 5, "to": bounds[1] + 9, "step": 25}
    folder.spans_file.write_text(json.dumps(later) + "\n" + '{"lane": "half')
    for each in (reader, RunReader(folder)):
        answer = ask(each, "timeline")
        assert answer["bounds"] == [START, bounds[1] + 9]
        assert len(answer["lanes"][0]["spans"]) == 24 * 4 + 1


def test_windows_that_are_none(reader: RunReader) -> None:
    for query in ({"from_": "soon"}, {"from_": "nan"}, {"from_": 2, "to": 1}):
        with pytest.raises(BadQuestion):
            ask(reader, "timeline", **query)
    assert ask(reader, "timeline", from_=0, to=1)["lanes"][0]["spans"] == []


def test_a_run_in_its_first_second_has_a_window(folder: RunFolder, reader: RunReader) -> None:
    level = {"at": START, "learner": "waiting", "in_flight": 4, "buffered": 0, "slots_held": 4, "requests": {"e": 8}}
    folder.spans_file.write_text(json.dumps(level) + '\n{"lane": "learner", "sta')
    answer = ask(reader, "timeline")
    assert (answer["from"], answer["to"], answer["flow"]["in_flight"]) == (START, START + 1.0, [4])
    assert [lane["name"] for lane in answer["lanes"]] == ["learner", "e"]


def test_nothing_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    reader = RunReader(RunFolder(tmp_path))
    assert ask(reader, "series")["rows"] == 0
    assert ask(reader, "timeline") == {"bounds": None, "lanes": []}
    assert ask(reader, "rollouts") == {"steps": [], "evaluations": [], "untrained": False}
    assert ask(reader, "warnings") == {"warnings": []}
    assert ask(reader, "run")["state"] == "starting"


def test_which_rollouts_there_are(folder: RunFolder, reader: RunReader) -> None:
    shutil.copy(folder.rollouts_dir / "step_000001.parquet", folder.rollouts_dir / "eval_000008.parquet")
    (folder.rollouts_dir / "step_000003.parquet.rewound-1").touch()
    assert ask(reader, "rollouts") == {"steps": [[1, 2], [24, 24]], "evaluations": [8], "untrained": False}


def test_groups_of_a_step(reader: RunReader) -> None:
    groups = ask(reader, "rollouts", of="step_000002")["groups"]
    assert [(each["group"], each["fate"], each["rewards"], each["staleness"]) for each in groups] == [
        (20, "trained", [1.0, -1.0], 1),
        (21, "trained", [0.5, 0.0], 1),  # its empty sample counts from the group's start
        (22, "dropped:stale", [0.1], None),
    ]
    assert groups[0]["prompt"] == "Repeat: 2, 2, 3."


def test_a_group_and_its_tokens(reader: RunReader) -> None:
    group = ask(reader, "group", of="step_000002", group=21)
    assert group["messages"] == [{"role": "", "content": f"Say {HOSTILE}"}]
    assert (group["version"], group["seconds"]) == (1, 3.0)
    first = group["samples"][0]
    assert (first["completion"], first["rewards"], first["seconds"]) == (HOSTILE, {HOSTILE: 0.5, "length": 1.0}, 2.5)
    tokens = ask(reader, "tokens", of="step_000002", group=21, sample=0)
    assert tokens["ids"] == list(range(10, 20))
    assert tokens["sampled"] == [True] * 4 + [False] * 3 + [True] * 3
    assert tokens["logprobs"][:3] == [0.0, -0.25, -0.5]
    assert (tokens["versions"], tokens["version"], tokens["advantage"]) == ([1] * 10, 1, 0.5)
    assert tokens["texts"] is None
    assert tokens["proximal"] == pytest.approx([-2.0 + 2.0 * (10 + i) / 19 for i in range(10)], abs=1e-4)
    assert ask(reader, "tokens", of="step_000002", group=22, sample=0)["proximal"] is None  # it was not trained
    assert ask(reader, "tokens", of="step_000002", group=21, sample=1)["ids"] == []
    chat = ask(reader, "group", of="step_000002", group=20)
    assert [message["role"] for message in chat["messages"]] == ["system", "user"]


def test_texts_of_tokens_come_from_the_run_s_tokenizer(folder: RunFolder, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    ids = tokenizer.encode("Grüße 🦙<|im_end|>")
    for reader in (RunReader(folder, tokenizer.backend_tokenizer), RunReader(folder)):
        if reader is not None and not folder.model_dir.exists():
            tokenizer.save_pretrained(folder.model_dir)
        texts = reader._texts.of(ids)
        assert texts is not None
        assert "".join(texts) == "Grüße 🦙<|im_end|>"
        assert (len(texts), texts[2], texts[3]) == (len(ids), "", "ü")  # two bytes, a token each


def test_what_is_not_there(folder: RunFolder, reader: RunReader) -> None:
    for of, said in (
        ("step_000003", "there are no rollouts step_000003"),
        ("../config", "is no rollout file"),
        ("step_1", "is no rollout file"),
        ("", "is no rollout file"),
    ):
        with pytest.raises(Missing, match=said):
            ask(reader, "group", of=of, group=1)
    with pytest.raises(Missing, match="has no group 7"):
        ask(reader, "group", of="step_000002", group=7)
    with pytest.raises(Missing, match="has no sample 9 of group 20"):
        ask(reader, "tokens", of="step_000002", group=20, sample=9)
    with pytest.raises(BadQuestion, match="group='x' is no whole number"):
        ask(reader, "group", of="step_000002", group="x")
    with pytest.raises(Missing, match="there is no api/secrets"):
        ask(reader, "secrets")
    (folder.rollouts_dir / "step_000002.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(Missing, match=r"step_000002\.parquet cannot be read"):
        ask(reader, "rollouts", of="step_000002")


def test_files_from_before_there_were_turns(folder: RunFolder, reader: RunReader) -> None:
    import pyarrow.parquet as pq

    write_step(folder, 3)
    path = folder.rollouts_dir / "step_000003.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["sampled", "extra", "proximal_logprobs"]), path)
    assert ask(reader, "tokens", of="step_000003", group=31, sample=0)["proximal"] is None
    assert ask(reader, "tokens", of="step_000003", group=31, sample=0)["sampled"] == [True] * 10
    assert ask(reader, "group", of="step_000003", group=31)["samples"][0]["extra"] == {}


def test_files_of_other_versions_lack_columns(folder: RunFolder, reader: RunReader) -> None:
    import pyarrow.parquet as pq

    path = folder.rollouts_dir / "step_000002.parquet"
    kept = ["group_id", "sample", "prompt", "completion", "token_ids", "behaviour_logprobs", "versions", "reward"]
    pq.write_table(pq.read_table(path).select(kept), path)
    assert [each["rewards"] for each in ask(reader, "rollouts", of="step_000002")["groups"]] == [
        [1.0, -1.0], [0.5, 0.0], [0.1],
    ]  # fmt: skip
    shown = ask(reader, "group", of="step_000002", group=21)
    assert (shown["fate"], shown["seconds"], shown["samples"][0]["rewards"]) == (None, None, {})
    assert ask(reader, "tokens", of="step_000002", group=21, sample=0)["version"] is None


def test_a_file_with_many_rows_is_read_some_at_a_time(folder: RunFolder, reader: RunReader) -> None:
    size = 3 * rollout_rows.ROWS_AT_ONCE // 10 + 1  # groups that end in other batches than they begin
    many = [group(g, f"prompt {g}", [sample(f"{g} {i}", i, [0, 0]) for i in range(10)]) for g in range(size)]
    Recorder(folder).write_evaluation(8, many)
    listed = ask(reader, "rollouts", of="eval_000008")
    assert [each["rewards"] for each in listed["groups"]] == [[*map(float, range(10))]] * size
    assert listed["groups"][25]["prompt"] == "prompt 25"
    across = rollout_rows.ROWS_AT_ONCE // 10
    texts = [each["completion"] for each in ask(reader, "group", of="eval_000008", group=across)["samples"]]
    assert texts == [f"{across} {i}" for i in range(10)]
    assert ask(reader, "tokens", of="eval_000008", group=across, sample=9)["ids"] == [10, 11]


def test_more_groups_than_are_shown_are_counted(
    folder: RunFolder, reader: RunReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncgrpo.observe.page.rollouts.MOST_GROUPS", 2)
    listed = ask(reader, "rollouts", of="step_000002")
    assert ([each["group"] for each in listed["groups"]], listed["left_out"]) == ([20, 21], 1)


def test_warnings_with_the_newest_first(reader: RunReader) -> None:
    failed, repeated, hostile = ask(reader, "warnings")["warnings"]
    assert failed["level"] == "ERROR"
    assert failed["text"].splitlines()[-1] == "asyncgrpo.errors.StallError: step 5: waiting for groups"
    assert (repeated["times"], repeated["step"], repeated["logger"]) == (2, "4", "asyncgrpo.meter")
    assert hostile["text"].endswith(HOSTILE)


def test_warnings_that_come_are_added_and_what_goes_on_belongs_to_the_one_before(
    folder: RunFolder, reader: RunReader
) -> None:
    line = "2026-11-30T01:13:0{}.000Z {} step=5 version=4 asyncgrpo.meter: {}\n"
    before = len(ask(reader, "warnings")["warnings"])
    with open(folder.log_file, "a") as file:
        file.write(line.format(0, "WARNING", "slow") + "because of this\nhalf a li")
    assert ask(reader, "warnings")["warnings"][0]["text"] == "slow\nbecause of this"
    with open(folder.log_file, "a") as file:
        file.write("ne\n" + line.format(1, "INFO", "fine") + "and more of it\n" + line.format(2, "WARNING", "slow"))
    newest, whole, *rest = ask(reader, "warnings")["warnings"]
    assert (newest["text"], newest["times"]) == ("slow", 1)
    assert whole["text"] == "slow\nbecause of this\nhalf a line"
    assert len(rest) == before
    folder.log_file.write_text(line.format(3, "WARNING", "anew"))
    assert [each["text"] for each in ask(reader, "warnings")["warnings"]] == ["anew"]


def test_repeats_do_not_push_other_warnings_out(folder: RunFolder, reader: RunReader) -> None:
    line = "2026-11-30T01:13:00.000Z WARNING step={} version=4 asyncgrpo.meter: {}\n"
    with open(folder.log_file, "w") as file:
        file.write(line.format(1, "only once"))
        file.writelines(line.format(step, "again and again") for step in range(2, 502))
    newest, once = ask(reader, "warnings")["warnings"]
    assert (newest["text"], newest["times"], newest["step"], once["text"]) == (
        "again and again",
        500,
        "501",
        "only once",
    )
    with open(folder.log_file, "a") as file:
        file.writelines(line.format(step, f"each another: {step}") for step in range(300))
    shown = ask(reader, "warnings")["warnings"]
    assert [each["text"] for each in shown] == [f"each another: {step}" for step in range(299, 99, -1)]


def test_warnings_of_a_log_of_json(folder: RunFolder, reader: RunReader) -> None:
    line = {"time": "2026-11-30T01:11:04.141Z", "level": "info", "run": "r", "step": None, "version": None}
    failed = {**line, "logger": "asyncgrpo.launch", "message": "the run failed", "traceback": "Traceback …"}
    warned = {**line, "level": "warning", "step": 3, "logger": "asyncgrpo.meter", "message": "late"}
    folder.log_file.write_text("".join(json.dumps(each) + "\n" for each in (line | {"message": 1}, warned, failed)))
    first, second = ask(reader, "warnings")["warnings"]
    assert (first["level"], first["text"], first["step"]) == ("ERROR", "the run failed\nTraceback …", "-")
    assert (second["level"], second["text"], second["step"]) == ("WARNING", "late", "3")


def test_the_settings_are_the_file_s(folder: RunFolder, reader: RunReader) -> None:
    assert ask(reader, "config") == {"text": folder.config_file.read_text()}
