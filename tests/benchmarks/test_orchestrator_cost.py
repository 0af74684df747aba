"""That the benchmark of the orchestrator runs, and that its canned engine answers what the client can read."""

import json
import random
import subprocess
import sys

import orchestrator
import orchestrator_side
import pytest
from canned_engine import answer

from asyncgrpo.generation.response import Request, parse_completion


def test_the_canned_answer_is_one_that_the_client_reads() -> None:
    before, after = answer(20, 50, random.Random(0))
    request = Request(engine="e0", incarnation="run.0", max_tokens=20, vocab_size=50, started_at=0.0)
    completion = parse_completion(before + b"run.0:7" + after, request, 1.0)
    assert (len(completion), completion.finish_reason, set(completion.versions)) == (20, "length", {7})


def test_a_run_goes_through_the_real_orchestrator() -> None:
    load = orchestrator_side.Load(in_flight=64, samples=256, groups_per_step=4, tokens=16, rate=2000.0)
    figures = orchestrator_side.measure(load)
    assert figures["in_flight"] == 64
    assert 256 <= figures["samples"] < 512
    assert figures["cpu_seconds_per_sample"] > 0.0
    assert figures["engines_core_ratio"] > 0.0


@pytest.mark.slow
def test_the_script_ends_with_its_figures() -> None:
    command = [sys.executable, orchestrator.__file__, "--in-flight", "64", "--samples", "128"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["completions_per_second"] > 0.0
    assert figures["completions_per_core_second"] > 0.0
    assert figures["loop_delay_p99_seconds"] > 0.0
    assert figures["rss_growth_mib"] is not None
    assert [*figures["cpu_seconds_per_sample"]] == ["64"]
    assert done.stderr.splitlines()[0] == "128 samples, 64 in flight …"


def test_a_measurement_on_a_slow_machine_ends_with_fewer_samples() -> None:
    load = orchestrator_side.Load(in_flight=64, samples=4096, groups_per_step=4, tokens=16, rate=200.0, seconds=0.1)
    assert 32 <= orchestrator_side.measure(load)["samples"] < 1024


def test_the_last_line_is_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    def measured(**load: object) -> dict[str, object]:
        return {
            "in_flight": load["in_flight"],
            "samples": load["samples"],
            "completions_per_second": 1600.0,
            "core_ratio": 1.0,
            "engines_core_ratio": 0.4,
            "cpu_seconds_per_sample": 0.0006,
            "yardstick_seconds": 0.0002,
            "loop_delay_p50_seconds": 0.001,
            "loop_delay_p99_seconds": 0.02,
            "loop_delay_max_seconds": 0.03,
            "rss_growth_mib": 1.0,
        }

    orchestrator.main(measured, ["--quick"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["completions_per_second"] == 1600.0
    assert figures["loop_delay_p99_seconds"] == 0.02
    assert figures["rss_growth_mib"] == 1.0
    assert set(figures["cpu_seconds_per_sample"]) == {"64", "256", "1024", "4096"}
    assert figures["yardsticks_per_sample"]["64"] == pytest.approx(3.0)
