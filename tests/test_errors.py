"""What errors of the project can do."""

import numpy as np
import pytest

from asyncgrpo.errors import AsyncGRPOError, EngineUnavailable, RollbackWanted
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


def test_what_an_error_carries_stays_with_it() -> None:
    cut = Aborted("cut", NO_TOKENS)
    cut.engine = "e0"
    other = cut.saying("cut\nits last words")
    assert (type(other), str(other), other.engine) == (Aborted, "cut\nits last words", "e0")
    np.testing.assert_array_equal(other.partial.token_ids, NO_TOKENS.token_ids)
    assert isinstance(other, EngineUnavailable)
    assert (str(cut), RollbackWanted("a").saying("b").wants_rollback) == ("cut", True)
