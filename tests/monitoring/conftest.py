"""monitoring/ is a folder of scripts: it has to be on the path. Prometheus may be missing, but not in CI."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "monitoring"))


def _program(name: str) -> str:
    from querying import program

    try:
        return program(name)
    except RuntimeError as error:
        if os.environ.get("ASYNCGRPO_CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def promtool() -> str:
    return _program("promtool")


@pytest.fixture(scope="session")
def prometheus() -> str:
    return _program("prometheus")
