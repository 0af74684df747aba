"""Runs by worker processes: each once, whatever its end."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from ablation_cases import TOY, toy_study
from toy_runs import Heard, conducted

from asyncgrpo.ablation.design.reading import study_from_json
from asyncgrpo.ablation.findings.beforehand import read_beforehand
from asyncgrpo.ablation.tables.folder import open_study, read_plan
from asyncgrpo.ablation.tables.records import read_table
from asyncgrpo.errors import ConfigError, RunFolderError


def two_seeds(**options: Any) -> dict[str, Any]:
    """One arm, with these options."""
    return {"factors": {"only": {"one": {}}}, "base": {"options": options}}


def test_tables_hold_every_run_and_step(tmp_path: Path) -> None:
    study = toy_study(controls={"baseline": {"staleness": 0}, "aa": {"method": "good", "staleness": 0}})
    heard = Heard()
    conducted(study, tmp_path / "out", tmp_path, parallel=2, watcher=heard)
    runs = {row["run"]: row for row in read_table(tmp_path / "out" / "runs.parquet").to_pylist()}
    assert (len(heard.done), heard.taken) == (10, [])
    assert {(row["arm"], row["role"], row["seed"]) for row in runs.values()} == {
        (f"method={method}, staleness={staleness}{more}", role, seed)
        for method, staleness, more, role in (
            ("good", 0, "", "baseline"),
            ("good", 4, "", "arm"),
            ("bad", 0, "", "baseline"),
            ("bad", 4, "", "arm"),
            ("good", 0, " (A/A)", "aa"),
        )
        for seed in (0, 1)
    }
    steps = read_table(tmp_path / "out" / "steps.parquet").to_pylist()
    assert len(steps) == 10 * 5
    for step in steps:
        row, n = runs[step["run"]], step["step"]
        height = 1.0 if row["factor:method"] == "good" else 0.5
        score = height * n / (n + 4) + row["seed"] / 1000 + (0.01 if row["role"] == "aa" else 0.0)
        assert step["score"] == (pytest.approx(score) if n in (0, 2, 4) else None)
        assert (step["tokens"], step["samples"], step["seconds"]) == (10.0 * n, 4.0 * n, 0.5 * n)
        assert (step["gradient_norm"], step["verdict"]) == (1 / (n + 1), "balanced")


def test_a_row_says_what_the_run_was(tmp_path: Path) -> None:
    study = toy_study(base={"training": {"num_iterations": 2, "num_minibatches": 2}}, seeds=[7])
    row = conducted(study, tmp_path / "out", tmp_path)[3]
    assert (row["factor:method"], row["factor:staleness"], row["seed"]) == ("bad", "4", 7)
    assert (row["status"], row["error"], row["from_cache"], row["tuned"]) == ("finished", None, False, None)
    assert (row["updates_per_step"], row["staleness_kind"]) == (4, "injected")
    config = json.loads(row["config"])
    assert (config["buffer.max_staleness"], config["options.height"], config["run.seed"]) == (4, 0.5, 7)
    assert json.loads(row["versions"])["asyncgrpo"]
    assert json.loads(row["machine"])["runs_at_once"] == 1
    assert row["command"].endswith(f"--output {tmp_path / 'out' / 'again'} --key {row['run']}")


def test_what_is_over_is_not_done_again(tmp_path: Path) -> None:
    first, second = Heard(), Heard()
    conducted(toy_study(seeds=1), tmp_path / "out", tmp_path, watcher=first)
    conducted(toy_study(seeds=2), tmp_path / "out", tmp_path, watcher=second)
    assert (len(first.done), len(second.done)) == (4, 4)
    assert second.taken == first.done


def test_studies_that_share_a_cache_find_each_others_runs(tmp_path: Path) -> None:
    rename = {"well": {"options.height": 1.0}, "worse": {"options.height": 0.2}}
    other = toy_study(factors={"how": rename, "staleness": {"key": "buffer.max_staleness", "values": [4]}})
    conducted(toy_study(), tmp_path / "one", tmp_path, cache=tmp_path / "cache")
    heard = Heard()
    conducted(other, tmp_path / "two", tmp_path, cache=tmp_path / "cache", watcher=heard)
    rows = read_table(tmp_path / "two" / "runs.parquet").to_pylist()
    assert {(row["arm"], row["from_cache"]) for row in rows} == {
        ("how=well, staleness=4", True),
        ("how=worse, staleness=4", False),
    }
    assert "factor:method" not in rows[0]
    assert len(read_table(tmp_path / "two" / "steps.parquet")) == 4 * 5


@pytest.mark.parametrize(
    ("how", "status", "error"),
    [
        ("raise", "failed", "ZeroDivisionError: the toy broke"),
        ("guard", "stopped_by_guard", "reward collapsed; guards.reward_action=stop"),
        ("nan", "diverged", "loss is nan"),
        ("die", "failed", "its process ended with signal SIGKILL; the log in its folder may say why"),
        pytest.param(
            "hang",
            "failed",
            "it took longer than run_timeout = 20 s; look at its log, or raise that and add --retry",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_failure_is_a_result_and_the_next_run_goes_on(how: str, status: str, error: str, tmp_path: Path) -> None:
    study = toy_study(**two_seeds(fail=how, fail_seeds=[0]), run_timeout=20.0)
    failed, fine = conducted(study, tmp_path / "out", tmp_path)
    assert (failed["status"], failed["error"]) == (status, error)
    assert (fine["status"], fine["error"]) == ("finished", None)
    steps = read_table(tmp_path / "out" / "steps.parquet").to_pylist()
    assert [step["step"] for step in steps if step["run"] == failed["run"]] == [0, 1]
    assert not [
        child for child in psutil.Process().children() if "asyncgrpo.ablation.running.worker" in child.cmdline()
    ]


def test_what_a_run_started_is_gone_when_its_process_has_died(tmp_path: Path) -> None:
    child = tmp_path / "child"
    (row,) = conducted(toy_study(**two_seeds(fail=str(child)), seeds=1), tmp_path / "out", tmp_path)
    assert row["status"] == "failed"
    pid = int(child.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_failed_run_is_done_again_only_when_asked(tmp_path: Path) -> None:
    study = toy_study(**two_seeds(fail="raise", fail_seeds=[0]))
    kept, again = Heard(), Heard()
    conducted(study, tmp_path / "out", tmp_path)
    conducted(study, tmp_path / "out", tmp_path, watcher=kept)
    conducted(study, tmp_path / "out", tmp_path, watcher=again, retry=True)
    assert (len(kept.done), len(again.done)) == (0, 1)


def test_a_failed_run_is_not_in_the_cache(tmp_path: Path) -> None:
    conducted(
        toy_study(**two_seeds(fail="raise", fail_seeds=[0])), tmp_path / "out", tmp_path, cache=tmp_path / "cache"
    )
    assert len(list((tmp_path / "cache" / "runs").iterdir())) == 1


def test_a_run_that_ends_before_its_budget_has_failed(tmp_path: Path) -> None:
    study = toy_study(**two_seeds(), budget={"tokens": 1000}, seeds=1)
    values = study.as_json()
    values["study"]["kind"] = f"{TOY}:stops_early"
    (row,) = conducted(study_from_json(values), tmp_path / "out", tmp_path)
    assert row["error"].startswith(
        "the run ended at step 1, before its budget of 1000 tokens; raise training.max_steps"
    )


def test_a_run_without_a_score_at_its_end_has_failed(tmp_path: Path) -> None:
    study = toy_study(
        **two_seeds(), seeds=1, study={"name": "x", "question": "?", "kind": f"{TOY}:forgets_the_last_score"}
    )
    (row,) = conducted(study, tmp_path / "out", tmp_path)
    assert (row["status"], row["error"][:49]) == ("failed", "the policy after the last step, 4, was not evalua")


def test_what_a_run_prints_is_in_its_log(tmp_path: Path) -> None:
    rows = conducted(toy_study(**two_seeds()), tmp_path / "out", tmp_path)
    logs = [(tmp_path / "out" / "runs" / row["run"] / "log").read_text() for row in rows]
    assert logs == ["toy, seed 0\n", "toy, seed 1\n"]


def test_arms_of_a_seed_begin_from_one_preparation(tmp_path: Path) -> None:
    study = toy_study(prepare={"path": f"{TOY}:prepare", "options": {"digits": 3}})
    rows = conducted(study, tmp_path / "out", tmp_path, parallel=2)
    assert sorted((tmp_path / "out" / "prepared" / "calls").read_text().split()) == ["0", "1"]
    starts: dict[int, set[str]] = {}
    for row in rows:
        seen = json.loads((tmp_path / "out" / "runs" / row["run"] / "seen.json").read_text())
        starts.setdefault(row["seed"], set()).add(seen["options"]["start"])
    assert {seed: [Path(start).read_text() for start in found] for seed, found in starts.items()} == {
        0: ["3 0"],
        1: ["3 1"],
    }


def test_a_preparation_that_returns_no_settings_fails_its_runs(tmp_path: Path) -> None:
    study = toy_study(**two_seeds(), prepare={"path": f"{TOY}:prepares_nothing"}, seeds=1)
    (row,) = conducted(study, tmp_path / "out", tmp_path)
    assert "returned 7; it must return settings by dotted key" in row["error"]


def test_every_arm_gets_the_value_that_suits_it_on_other_seeds(tmp_path: Path) -> None:
    study = toy_study(
        factors={"staleness": {"key": "buffer.max_staleness", "values": [0, 4]}},
        tune={"key": "options.height", "values": [0.1, 0.9, 0.5], "seeds": [100]},
        seeds=1,
    )
    rows = conducted(study, tmp_path / "out", tmp_path)
    assert [(row["role"], row["tuned"], row["seed"]) for row in rows] == [
        *(("tuning", value, 100) for _ in range(2) for value in ("0.1", "0.9", "0.5")),
        *(("arm", "0.9", 0) for _ in range(2)),
    ]
    assert json.loads(rows[-1]["config"])["options.height"] == 0.9
    found = read_plan(tmp_path / "out")["tuning"]["staleness=4"]
    assert found["chosen"] == 0.9
    # mean height over steps 0 to 4 of h n / (n + 4) at 0, 2, 4, and the seed's 0.1: h (0/2 + 1/3 + 1/4) / 2 + 0.1
    assert found["means"] == {
        value: pytest.approx(float(value) * (1 / 3 + 1 / 4) / 2 + 0.1) for value in ("0.1", "0.9", "0.5")
    }


def test_one_run_alone(tmp_path: Path) -> None:
    rows = conducted(toy_study(), tmp_path / "out", tmp_path)
    again = conducted(toy_study(), tmp_path / "again", tmp_path, key=rows[5]["run"])
    assert [row["run"] for row in again] == [rows[5]["run"]]
    with pytest.raises(ConfigError, match="--key zz: no run of the study begins with it"):
        conducted(toy_study(), tmp_path / "again", tmp_path, key="zz")


def test_running_engines_serve_one_run_at_a_time(tmp_path: Path) -> None:
    base = {"engines": {"urls": ["http://127.0.0.1:1"]}, "evaluation": {"dataset": "d.jsonl"}}
    header = {"name": "a", "question": "?", "kind": "asynchronous"}
    factors = {"staleness": {"key": "buffer.max_staleness", "values": [0, 4]}}
    with pytest.raises(ConfigError, match=r"--parallel 2: engines\.urls names running engines"):
        conducted(toy_study(study=header, base=base, factors=factors), tmp_path / "out", tmp_path, parallel=2)


EXPECTATION = {"name": "e", "left": {"staleness": 4}, "right": {"staleness": 0}, "expect": "less"}


def test_the_study_stays_as_it_was_before_the_first_run(tmp_path: Path) -> None:
    changed = {**EXPECTATION, "expect": "greater"}
    conducted(toy_study(seeds=1, expectations=[EXPECTATION]), tmp_path / "out", tmp_path)
    first = read_plan(tmp_path / "out")
    assert first["frozen"] == first["study"]
    assert first["study_changed"] == []
    for expectations, margin in (([EXPECTATION], 0.03), ([changed], 0.2), ([changed], 0.2)):
        study = toy_study(seeds=1, expectations=expectations, equivalence_margin=margin)
        conducted(study, tmp_path / "out", tmp_path)
    plan = read_plan(tmp_path / "out")
    assert [plan[name] for name in ("sha256", "written_at", "frozen")] == [
        first[name] for name in ("sha256", "written_at", "frozen")
    ]
    (change,) = plan["study_changed"]
    assert change["runs_begun"] == 4
    assert change["fields"] == [
        {"field": "equivalence_margin", "then": 0.03, "now": 0.2},
        {"field": "expectations.e.expect", "then": "less", "now": "greater"},
    ]
    known = read_beforehand(tmp_path / "out")
    assert (known.study.equivalence_margin, known.study.expectations[0].expect) == (0.03, "less")
    assert [line.split(": ")[1] for line in known.changes] == [
        "equivalence_margin was 0.03, is 0.2",
        'expectations.e.expect was "less", is "greater"',
    ]


def test_a_plan_that_went_missing_is_told(tmp_path: Path) -> None:
    conducted(toy_study(seeds=1), tmp_path / "out", tmp_path)
    (tmp_path / "out" / "plan.json").unlink()
    conducted(toy_study(seeds=1), tmp_path / "out", tmp_path)
    lost, older = read_beforehand(tmp_path / "out").changes
    assert lost.endswith('after 4 runs had begun: plan.json was absent, is "written anew"')
    assert older == "4 of 4 runs (0 from the cache) were over before the study was written down"


def test_cached_runs_that_are_older_than_the_study_are_told(tmp_path: Path) -> None:
    conducted(toy_study(seeds=1), tmp_path / "one", tmp_path, cache=tmp_path / "cache")
    conducted(toy_study(seeds=2), tmp_path / "two", tmp_path, cache=tmp_path / "cache")
    assert read_beforehand(tmp_path / "one").changes == ()
    assert read_beforehand(tmp_path / "two").changes == (
        "4 of 8 runs (4 from the cache) were over before the study was written down",
    )


def test_the_folder_knows_its_study_and_no_other(tmp_path: Path) -> None:
    study = toy_study(seeds=1)
    conducted(study, tmp_path / "out", tmp_path)
    assert open_study(tmp_path / "out") == study
    assert (tmp_path / "out" / "study.yaml").read_text() == (tmp_path / "study.yaml").read_text()
    with pytest.raises(RunFolderError, match="holds the study 'toy', and this one is 'other'"):
        header = {"name": "other", "question": "?", "kind": f"{TOY}:run"}
        conducted(toy_study(study=header), tmp_path / "out", tmp_path)
    with pytest.raises(RunFolderError, match=r"is not the folder of a study: plan\.json cannot be read"):
        read_plan(tmp_path)
