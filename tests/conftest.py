"""What many tests need: a tiny model on disk, and few threads, since machines that run tests are small."""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch starts its threads; child processes inherit it

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a tied output head."""
    from asyncgrpo.testing.tiny import make_tiny_model  # seconds, which tests without a model need not wait

    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "tied", tied=True)


@pytest.fixture(scope="session")
def untied_tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from asyncgrpo.testing.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "untied", tied=False, architecture="llama")


@pytest.fixture(params=["tied", "untied"])
def any_tiny_model(request: pytest.FixtureRequest, tiny_model: Path, untied_tiny_model: Path) -> Path:
    return tiny_model if request.param == "tied" else untied_tiny_model
