"""That the benchmark of observing runs with each part on or off, and what it makes of its measurements."""

import json
from typing import Any

import observing
import observing_side
import pytest
from canned_run import Load

LOAD = Load(
    in_flight=64, samples=128, groups_per_step=4, tokens=16, latency=0.05, learner_seconds=0.02, save_rollouts=True
)


@pytest.mark.parametrize("parts", [(), observing_side.PARTS], ids=["nothing", "all"])
def test_a_run_is_observed_or_not(parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is off nothing is left behind; what is on was asked for, and answered."""
    left: dict[str, Any] = {}
    real = observing_side.observe

    async def observe(what: Any, session: Any, engines: Any) -> Any:
        figures = await real(what, session, engines)
        files = {path.name for path in session.folder.path.rglob("*") if path.is_file() and path.stat().st_size}
        left.update(files=files, metrics={m.name: m for m in session.metrics.registry.collect()})
        return figures

    monkeypatch.setattr(observing_side, "observe", observe)
    figures = observing_side.measure(observing_side.Observed(load=LOAD, parts=parts, hurry=20.0))
    assert figures["samples"] >= 128
    assert figures["steps"] >= 3
    assert figures["step_seconds"] >= LOAD.learner_seconds
    assert {"spans.jsonl", "orchestrator.log"} & left["files"] == (
        {"spans.jsonl", "orchestrator.log"} if parts else set()
    )
    (steps,) = [s.value for s in left["metrics"]["asyncgrpo_step_duration_seconds"].samples if s.name.endswith("count")]
    assert (steps > 3) == bool(parts)


def measured(what: dict[str, Any]) -> dict[str, Any]:
    """Each part costs 1 % of a step and 10 µs a sample; rollouts three times that."""
    cost = len(what["parts"]) + 2 * ("rollouts" in what["parts"])
    hurries = what["hurry"] > 1
    return {
        "steps": 40,
        "step_seconds": 1.0 + 0.01 * cost,
        "cpu_seconds_per_sample": 5e-4 + 1e-5 * cost,
        "cpu_seconds_per_step": 512 * (5e-4 + 1e-5 * cost),
        "yardstick_seconds": 2e-4,
        "loop_delay_p99_seconds": 0.01,
        "rss_growth_mib": 3.0 + 0.5 * cost if hurries else 100.0,
        "rss_tenths_mib": [500.0] * 10,
    }


def test_ratios_are_to_none_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    observing.main(["--rounds", "3"], measured)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["step_time_ratio"] == pytest.approx(1.06)
    assert figures["step_time_ratio_with_rollouts"] == pytest.approx(1.09)
    assert figures["cpu_share_of_step"] == pytest.approx(512 * 6e-5)
    assert figures["rss_growth_mib_per_hour"] == pytest.approx(4 / 3 * 4.5)
    assert figures["rss_growth_mib_per_hour_without"] == pytest.approx(4.0)
    assert figures["cpu_seconds_per_sample"]["spans"] == pytest.approx(5.1e-4)
    assert set(figures["cpu_seconds_per_sample"]) == {"nothing", *observing.PARTS, "all but rollouts", "all"}
