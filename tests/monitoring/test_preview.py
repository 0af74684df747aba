"""What somebody is told who asks for a run that a Prometheus does not have."""

import sys

import preview
import pytest
from preview import View, objection_to
from querying import Api, Series


class Known(Api):
    """Has these runs."""

    def __init__(self, *names: str) -> None:
        super().__init__("http://nowhere")
        self._names = names

    def over(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        return [Series({"run": name}, [(start, 1.0)]) for name in self._names]


@pytest.mark.parametrize(
    ("known", "asked", "said"),
    [
        (("b", "a"), "c", "has no run c in this time (--minutes); it has a, b"),
        (("ab",), "a", "it has ab"),
        ((), "a", "it has none: do runs have observe.targets_dir?"),
    ],
)
def test_a_run_that_is_not_there_is_told_with_those_that_are(known: tuple[str, ...], asked: str, said: str) -> None:
    objection = objection_to(View(Known(*known), asked, 0.0, 60.0))
    assert objection is not None
    assert objection.endswith(said)


def test_one_that_is_there_or_several_by_an_expression_are_drawn() -> None:
    for asked in ("a", "a|b", ".+"):
        assert objection_to(View(Known("a", "b"), asked, 0.0, 60.0)) is None


def test_no_prometheus_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["preview.py", "--run", "a", "--url", "http://127.0.0.1:1"])
    assert preview.main() == 1
    assert capsys.readouterr().err.startswith("preview: no Prometheus answers at http://127.0.0.1:1 (")
