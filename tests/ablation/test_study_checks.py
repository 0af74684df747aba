"""Studies that would not compare what they say are refused before anything runs."""

from typing import Any

import pytest
from ablation_cases import TOY, toy_study

from asyncgrpo.ablation.design.study_checks import check_study
from asyncgrpo.errors import ConfigError

PAIR = {"name": "e", "left": {"staleness": 4}, "right": {"staleness": 0}, "expect": "less"}
RATES = {"key": "training.learning_rate", "values": [1e-3, 1e-4]}
STALENESS = {"key": "buffer.max_staleness", "values": [0, 4]}
HEADER = {"name": "x", "question": "?"}


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_study(toy_study(**changes))
    return str(caught.value)


def test_a_study_that_is_all_right_gives_its_arms() -> None:
    study = toy_study(
        controls={"baseline": {"staleness": 0}, "aa": {"method": "good", "staleness": 0}},
        tune={**RATES, "seeds": [100]},
        prepare={"path": f"{TOY}:prepare"},
        expectations=[PAIR],
    )
    assert len(check_study(study)) == 5
    positive = {"positive": {"method": "bad", "staleness": 4, "training.learning_rate": 1.0}}
    assert len(check_study(toy_study(controls=positive, tune={**RATES, "seeds": [100]}))) == 5


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"study": {**HEADER, "kind": "asynchron"}},
            "study.kind = 'asynchron': is no kind; did you mean 'asynchronous'?",
        ),
        ({"study": {**HEADER, "kind": "no.py:run"}}, "study.kind = 'no.py:run': there is no no.py here; a file is"),
        (
            {"prepare": {"path": "asyncgrpo.nothing:f"}},
            "prepare.path = 'asyncgrpo.nothing:f': there is no asyncgrpo.no",
        ),
        (
            {"prepare": {"path": "asyncgrpo"}},
            "prepare.path = 'asyncgrpo': expected module:function or file.py:function",
        ),
        (
            {"factors": {"rate": RATES, "other": {"a": {"training.learning_rate": 1.0}}}},
            "factors.other and factors.rate set training.learning_rate, so one would undo the other; leave it to",
        ),
        (
            {"factors": {"rate": RATES}, "tune": {**RATES, "seeds": [100]}},
            "factors.rate and tune set training.learning_rate",
        ),
        (
            {"tune": {**RATES, "seeds": [100]}, "controls": {"positive": {"method": "bad", "staleness": 4}}},
            "controls.positive = {'method': 'bad', 'staleness': 4}: tune would choose the training.learning_rate with "
            "which it does best, and it must collapse; give it one of its own, as training.learning_rate: 0.0001",
        ),
        ({"factors": {"f": {"a": {"rate": 1}}}}, "factors.f: 'rate' is no setting; write it with its section, as"),
        (
            {"factors": {"seed": {"key": "run.seed", "values": [0, 1]}}},
            "factors.seed: run.seed cannot be chosen; seeds",
        ),
        (
            {"factors": {"n": {"key": "training.max_steps", "values": [1]}}},
            "factors.n: training.max_steps cannot be ch",
        ),
        ({"seeds": [1, 1]}, "seeds = [1, 1]: 1 is there twice, which is one run counted as two; leave one out"),
        (
            {"seeds": 3, "tune": {**RATES, "seeds": [2, 100]}},
            "tune.seeds = [2, 100]: [2] are seeds of the study as well, which would then be chosen for",
        ),
        ({"expectations": [PAIR, PAIR]}, "expectations: 'e' is there twice; give each a name of its own"),
        (
            {"expectations": [{**PAIR, "left": {"staleness": 5}}]},
            "expectation 'e' = staleness=5: names no arm of the study; staleness has no level '5'; it has 0, 4",
        ),
        (
            {"exclude": [{"method": "ugly"}]},
            "exclude = {'method': 'ugly'}: there is no method=ugly, so it leaves nothi",
        ),
        (
            {"factors": {"rate": {"key": "training.learning_rate", "values": [1e-3, -1.0]}}},
            "training.learning_rate = -1.0: expected more than 0.0 (in the arm rate=-1)",
        ),
        (
            {"tune": {"key": "training.learning_rate", "values": [1e-3, 0], "seeds": [100]}},
            "training.learning_rate = 0: expected more than 0.0 (in the arm method=good, staleness=0, tried with 0)",
        ),
        (
            {"factors": {"rate": {"key": "training.lerning_rate", "values": [1e-3]}}},
            "unknown key 'lerning_rate' in section training; did you mean training.learning_rate? (in the arm rate=",
        ),
        ({"base": {"trainig": {}}}, "unknown setting 'trainig'; did you mean training? (in the arm method=good, st"),
        (
            {
                "study": {**HEADER, "kind": "injected"},
                "base": {},
                "factors": {"k": {"key": "injected.stale", "values": [1]}},
            },
            "unknown key 'stale' in injected; did you mean 'staleness'? (in the arm k=1)",
        ),
        (
            {"factors": {"method": {"clip": {"objective.gate": "clip"}, "default": {}}}},
            "the arms method=clip and method=default are the same settings; leave one of the levels out",
        ),
        (
            {"study": {**HEADER, "kind": "asynchronous"}, "base": {}, "factors": {"rate": RATES}},
            "evaluation.dataset is absent, so there is no score to compare arms by",
        ),
        (
            {"study": {**HEADER, "kind": "injected"}, "base": {}, "factors": {"s": STALENESS}},
            "factors.s: buffer.max_staleness is nothing that the kind `injected` reads, so its levels would be one; "
            "with kind: injected, staleness is injected.staleness",
        ),
        (
            {
                "study": {**HEADER, "kind": "bits"},
                "base": {},
                "factors": {"k": {"key": "bits.staleness", "values": [0, 1]}},
                "tune": {"key": "model.dtype", "values": ["float32", "bfloat16"], "seeds": [100]},
            },
            "tune: model.dtype is nothing that the kind `bits` reads, so its levels would be one; leave it out",
        ),
        (
            {
                "study": {**HEADER, "kind": "asynchronous"},
                "base": {},
                "factors": {"s": STALENESS},
                "controls": {"positive": {"s": 4, "injected.staleness": 9}},
            },
            "controls.positive: injected.staleness is nothing that the kind `asynchronous` reads, so its levels would "
            "be one; with kind: asynchronous, staleness is buffer.max_staleness",
        ),
        (
            {
                "study": {**HEADER, "kind": "injected"},
                "base": {"evaluation": {"dataset": "d.jsonl"}, "replay": {"replay_fraction": 0.5}},
                "factors": {"k": {"key": "injected.staleness", "values": [1]}},
            },
            "replay.replay_fraction is set, and the kind `injected` does not do it; leave it out, or study it with",
        ),
        (
            {
                "study": {**HEADER, "kind": "bits"},
                "base": {"training": {"groups_per_step": 2}},
                "factors": {"k": {"key": "bits.staleness", "values": [1]}},
            },
            "training.groups_per_step=2 has no meaning for the kind `bits`",
        ),
    ],
)
def test_refusals(changes: dict[str, Any], line: str) -> None:
    assert refusal(**changes).startswith(line)


def test_a_fault_of_all_arms_is_said_once() -> None:
    assert len(refusal(base={"training": {"num_minibatches": 3, "groups_per_step": 2}}).splitlines()) == 1


def test_two_objectives_that_cannot_be_combined_are_refused_by_the_product_itself() -> None:
    levels = {"double": {"objective.proximal_anchor": "behaviour"}, "plain": {}}
    assert "objective.proximal_anchor=behaviour" in refusal(factors={"method": levels})
