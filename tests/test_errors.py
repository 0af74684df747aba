"""What errors of the project can do."""

import re
from pathlib import Path

import numpy as np
import pytest

from asyncgrpo.cli.main import exit_code_of
from asyncgrpo.errors import EXIT_CODES, INTERRUPTED, AsyncGRPOError, EngineUnavailable, RollbackWanted
from asyncgrpo.generation.response import NO_TOKENS, Aborted


def every(kind: type[AsyncGRPOError]) -> list[type[AsyncGRPOError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in every(child))]


@pytest.mark.parametrize("kind", [kind for kind in every(AsyncGRPOError) if kind is not Aborted])
def test_an_error_says_something_else_and_stays_what_it_is(kind: type[AsyncGRPOError]) -> None:
    other = kind("first").saying("second")
    assert (type(other), str(other), other.args) == (kind, "second", ("second",))


def test_kinds_of_errors_can_be_told_apart_by_their_exit_codes() -> None:
    kinds = {kind: kind.exit_code for kind in AsyncGRPOError.__subclasses__()}
    refusals = {kind.__name__ for kind, code in kinds.items() if code == 2}
    others = [code for code in kinds.values() if code != 2]
    assert refusals == {"ConfigError", "DataError", "RunFolderError"}
    assert len(set(others)) == len(others) and not {0, 1, 130} & set(others)


def test_the_page_of_exit_codes_is_what_they_are() -> None:
    page = Path(__file__).resolve().parents[1] / "docs" / "liveness.md"
    table = page.read_text().partition("**Exit codes**")[2]
    said = {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| (.*) \|$", table, re.MULTILINE)}
    assert said == EXIT_CODES


def raised(error: BaseException) -> int:
    def command() -> int:
        raise error

    return exit_code_of(command)


def test_every_exit_code_is_one_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {kind: raised(kind("why")) for kind in every(AsyncGRPOError)[1:] if kind is not Aborted}
    assert capsys.readouterr().err == "error: why\n" * len(kinds)
    stopped = raised(KeyboardInterrupt())
    # 0 and 1 are what commands return themselves; Python has 1 for bugs.
    assert {*kinds.values(), stopped, 0, 1} == EXIT_CODES.keys()
    assert stopped == INTERRUPTED
    words = {"EngineStartError": "engine", "ProbeMismatch": "disagree", "GroupUnscored": "reward"}
    words |= {"LearnerError": "learner", "StallError": "deadline", "CheckpointError": "checkpoint"}
    words |= {"RollbackWanted": "guard", "EvaluationError": "evaluation", "EnvironmentFailure": "environment"}
    words |= {"ConfigError": "setting", "DataError": "data", "RunFolderError": "run folder"}
    named = {kind.__name__: code for kind, code in kinds.items()}
    assert [name for name, word in words.items() if word not in EXIT_CODES[named[name]]] == []


def test_a_bug_is_not_taken_for_anything_else() -> None:
    with pytest.raises(ZeroDivisionError):
        raised(ZeroDivisionError())


def test_what_an_error_carries_stays_with_it() -> None:
    cut = Aborted("cut", NO_TOKENS)
    cut.engine = "e0"
    other = cut.saying("cut\nits last words")
    assert (type(other), str(other), other.engine) == (Aborted, "cut\nits last words", "e0")
    np.testing.assert_array_equal(other.partial.token_ids, NO_TOKENS.token_ids)
    assert isinstance(other, EngineUnavailable)
    assert (str(cut), RollbackWanted("a").saying("b").wants_rollback) == ("cut", True)
