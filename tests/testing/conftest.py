from pathlib import Path

import pytest

from asyncgrpo.testing.tiny import make_tiny_model


@pytest.fixture(scope="session", params=[True, False], ids=["tied", "untied"])
def any_tiny_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tied = tmp_path_factory.mktemp("tiny"), bool(request.param)
    return make_tiny_model(folder, tied=tied, architecture="qwen2" if tied else "llama")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), tied=True)
