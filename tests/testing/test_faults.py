import pytest

from asyncgrpo.testing.faults import GENERATE, UPDATE, Fault, FaultPlan, Kind, plan_from_json, spoil


def test_faults_meet_the_requests_they_name() -> None:
    plan = FaultPlan(Fault("status", nth=(0, 2)), Fault("hang", on=UPDATE), Fault("abort", match=lambda b: b["x"] == 1))
    kinds = [fault and fault.kind for fault in (plan.take(GENERATE, {"x": x}) for x in (0, 1, 1, 0))]
    assert kinds == ["status", "abort", "status", None]
    assert [plan.take(UPDATE, {}) is not None for _ in range(2)] == [True, True]
    assert plan.take("/health", {}) is None


def test_a_plan_can_be_written_as_json() -> None:
    plan = plan_from_json('[{"kind": "die", "nth": [1]}, {"kind": "status", "on": "/pause", "status": 503}]')
    assert plan.take(GENERATE, {}) is None
    assert plan.take(GENERATE, {}) == Fault("die", nth=(1,))
    assert plan.take("/pause", {}) == Fault("status", on="/pause", status=503)


@pytest.mark.parametrize("kind", ["status", "slow", "ignore"])
def test_other_faults_leave_an_answer_alone(kind: Kind) -> None:
    assert spoil({"choices": [{"token_ids": [1]}]}, kind) == {"choices": [{"token_ids": [1]}]}


def test_a_fault_may_be_left_to_chance() -> None:
    plan = FaultPlan(Fault("hang", chance=0.25), Fault("status", on=UPDATE, chance=0.0), seed=1)
    met = [plan.take(GENERATE, {}) is not None for _ in range(400)]
    assert 60 < sum(met) < 140
    assert plan.take(UPDATE, {}) is None
    again = FaultPlan(Fault("hang", chance=0.25), seed=1)
    assert [again.take(GENERATE, {}) is not None for _ in range(400)] == met
