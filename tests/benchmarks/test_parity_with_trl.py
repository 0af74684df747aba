"""The verdict of the parity benchmark from what its sides say, and our side for real on fake engines."""

import json
from dataclasses import asdict

import pytest
from parity_statistics import Paired
from parity_task import Settings, make_start
from parity_with_trl import invalid, main
from shared import run_child


def figures(curve, **changes):
    said = {"curve": curve, "seconds": 1.0, "final_by_transformers": curve[-1][1], "most_staleness": 0}
    return said | changes


class Judge:
    """Stands for the statistics, which need more than is installed everywhere: notes what it is asked."""

    def __init__(self, equivalent=True):
        self.asked = []
        self._verdict = Paired(0.01, (-0.01, 0.03), 0.02, equivalent)

    def __call__(self, *question):
        self.asked.append(question)
        return self._verdict


def fake_side(calls, start=0.25):
    def run_side(script, settings):
        calls.append((script, settings))
        last = {"parity_asyncgrpo": 0.75, "parity_trl": 0.65}.get(script, 0.0) + settings.seed / 10
        return figures([(0, start), (10, last)])

    return run_side


def last_line(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_sides_are_compared_seed_by_seed(capsys, tmp_path):
    calls, judge = [], Judge()
    options = ["--seeds", "2", "--jobs", "1", "--handicap", "2", "--learning-rate", "0.5", "--keep", str(tmp_path)]
    assert main(options, fake_side(calls), judge) == 0
    scripts = [(script, settings.seed) for script, settings in calls]
    assert scripts == [
        ("parity_task", 0),
        ("parity_asyncgrpo", 0),
        ("parity_trl", 0),
        ("parity_task", 1),
        ("parity_trl", 1),
        ("parity_asyncgrpo", 1),
    ]
    assert {script: settings.learning_rate for script, settings in calls}["parity_trl"] == 0.25
    assert {script: settings.learning_rate for script, settings in calls}["parity_asyncgrpo"] == 0.5
    areas, finals = judge.asked
    assert areas == (pytest.approx([0.5, 0.55]), pytest.approx([0.45, 0.5]), 0.05)
    assert finals == (pytest.approx([0.75, 0.85]), pytest.approx([0.65, 0.75]), 0.05)
    line = last_line(capsys)
    assert (line["equivalent"], line["difference"], line["interval"]) == (True, 0.01, [-0.01, 0.03])
    assert (line["margin"], line["seeds"], line["start"], line["handicap"]) == (0.05, 2, 0.25, 2.0)
    assert line["asyncgrpo"]["area"] == pytest.approx(0.525) and line["trl"]["final"] == pytest.approx(0.7)
    assert line["trl"]["curve"] == [[0, 0.25], [10, pytest.approx(0.7)]]
    assert line["trl"]["curves"] == [[[0, 0.25], [10, 0.65]], [[0, 0.25], [10, 0.75]]]


@pytest.mark.parametrize(("options", "code"), [((), 1), (("--quick",), 0)])
def test_only_the_whole_run_fails_for_want_of_evidence(capsys, options, code):
    assert main([*options, "--jobs", "1"], fake_side([]), Judge(equivalent=False)) == code
    line = last_line(capsys)
    assert line["equivalent"] is False and line["seeds"] == (2 if options else 8)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"curve": [(0, 0.5), (10, 0.75)]}, "starts of 0.5 and 0.25"),
        ({"curve": [(0, 0.25), (5, 0.5), (10, 0.75)]}, "points at different steps"),
        ({"final_by_transformers": 0.5}, "final scores of 0.75 and 0.5"),
        ({"most_staleness": 1}, "staleness of 1"),
    ],
)
def test_what_cannot_be_compared_is_said(changes, reason):
    ours, theirs = figures([(0, 0.25), (10, 0.75)]), figures([(0, 0.25), (10, 0.7)])
    assert invalid([{"asyncgrpo": ours, "trl": theirs}]) == []
    (said,) = invalid([{"asyncgrpo": ours | changes, "trl": theirs}])
    assert said.startswith("seed 0: ") and reason in said


def test_starts_that_differ_are_no_verdict(capsys):
    def run_side(script, settings):
        return fake_side([], start=0.5 if script == "parity_trl" else 0.25)(script, settings)

    assert main(["--quick", "--jobs", "1"], run_side, Judge()) == 2
    assert len(last_line(capsys)["invalid"]) == 2


def test_one_seed_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--seeds", "1"], fake_side([]))
    assert "--seeds 1: a spread over seeds needs 2 at least" in capsys.readouterr().err


@pytest.mark.slow
def test_our_side_trains_and_is_measured_alike(tmp_path):
    sizes = {"digits": 2, "steps": 2, "eval_steps": 1, "held_out": 16, "groups": 2, "generations": 4, "warmup": 1}
    settings = Settings(seed=0, start_score=0.1, folder=str(tmp_path), **sizes)
    make_start(settings)
    found = run_child("parity_asyncgrpo.py", json.dumps(asdict(settings)), threads=1)
    assert [step for step, _ in found["curve"]] == [0, 1, 2]
    assert found["curve"][0][1] >= 1 / 16
    assert found["final_by_transformers"] == found["curve"][-1][1]
    assert found["most_staleness"] == 0 and len(found["rewards"]) == 2
