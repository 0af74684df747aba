"""What must not be in the code, and what a run with secrets must not leave behind. docs/security.md says the rest."""

import ast
import io
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_cases import lengths, make_job, run_config

import asyncgrpo
from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import from_python
from asyncgrpo.config.render import render_config
from asyncgrpo.errors import EngineRejected
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.generation.spec import engine_specs
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.observe.progress import Progress
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.orchestrator import Orchestrator
from asyncgrpo.session import open_session, prove_weights
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.weights.snapshots import LOCK, SnapshotStore

ROOT = Path(asyncgrpo.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "multiprocessing"}
"""Unpickle what they read; multiprocessing does with its queues and pipes."""
CALLS = {"eval", "exec", "torch.load", "torch.save", "np.save", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
OBJECTS = {
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
}
"""torch.distributed's and accelerate's functions that pickle."""


def unsafe(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)):
                if module.partition(".")[0] in MODULES:
                    yield module
                yield from (name.name for name in node.names if name.name in OBJECTS)
            case ast.Call(func=func):
                called = ast.unparse(func)
                if called in CALLS or called.rpartition(".")[2] in OBJECTS:
                    yield called
                yield from (word.arg for word in node.keywords if word.arg == "allow_pickle")


def test_nothing_unpickles_or_evaluates() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 150
    found = {str(file.relative_to(ROOT)): list(unsafe(file.read_text())) for file in files}
    # What a model wrote is run, where that is asked for: in a process that a sandbox holds.
    assert {file: calls for file, calls in found.items() if calls} == {
        "rewards/builtin/judged_program.py": ["exec", "exec", "exec"]
    }


def test_yaml_is_read_by_a_safe_loader_only() -> None:
    users = {file.name: file.read_text() for file in ROOT.rglob("*.py") if "import yaml\n" in file.read_text()}
    assert set(users) == {"yaml_text.py", "model_card.py"}
    assert set(re.findall(r"\byaml\.\w+", users["model_card.py"])) == {"yaml.safe_dump"}, "it only writes"
    assert "class _CoreLoader(yaml.SafeLoader)" in (ROOT / "config" / "yaml_text.py").read_text()


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load(f)",
        "eval('1')",
        "np.load(f, allow_pickle=True)",
        "torch.distributed.broadcast_object_list(x)",
        "from accelerate.utils import gather_object",
    ],
)
def test_the_check_sees_each(source: str) -> None:
    assert list(unsafe(source))


def test_defaults_are_closed() -> None:
    config = RunConfig()
    assert config.model.trust_remote_code is False
    assert config.observe.metrics_host == "127.0.0.1"


def test_managed_engines_listen_on_loopback_and_get_the_key_by_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "s3cret")
    monkeypatch.setenv("VLLM_API_KEY", "of another program")
    for engines, key in (({"api_key_env": "ENGINE_KEY"}, "s3cret"), ({}, "")):
        config = RunConfig.model_validate({"engines": {"devices": ["cpu"], "dtype": "float32", **engines}})
        (spec,) = engine_specs(config, "model", tmp_path, "backend")
        assert spec.command[spec.command.index("--host") + 1] == "127.0.0.1"
        assert spec.url.startswith("http://127.0.0.1:")
        assert spec.environment["VLLM_API_KEY"] == key
        assert "s3cret" not in " ".join(spec.command), "anybody can list command lines"


async def test_an_engine_with_a_key_wants_it(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "s3cret")
    with_key = RunConfig.model_validate({"engines": {"api_key_env": "ENGINE_KEY"}})
    async with FakeEngine(tiny_model, script=lengths, api_key="s3cret") as engine:
        engine.core.version = "run.0:0"
        async with EngineClient(engine.url, "e0", with_key, "run.0") as client:
            assert len(await client.generate((9, 6), "a", max_tokens=2)) == 2
            await client.health()
        async with EngineClient(engine.url, "e0", RunConfig(), "run.0") as client:
            await client.pause()  # vLLM guards no control route
            await client.resume()
            with pytest.raises(EngineRejected, match=r"401 .*name its variable by engines.api_key_env"):
                await client.generate((9, 6), "b", max_tokens=2)


async def test_a_run_leaves_no_secret_behind(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "t0ken")
    small = {"num_generations": 2, "max_completion_length": 6}
    async with FakeEngine(tiny_model, script=lengths) as engine:
        config = run_config(
            tiny_model,
            tmp_path,
            urls=[engine.url.replace("http://", "http://user:s3cret@")],
            generation=small,
            training={"max_steps": 2, "groups_per_step": 2},
            checkpoint={"save_steps": 1},
            observe={"metrics_token_env": "TOKEN", "log_level": "debug"},
        )
        job, shown = make_job(config), io.StringIO()
        with RunFolder.create(config.run.output_dir) as folder, Progress(2, stream=shown) as progress:
            folder.config_file.write_text(render_config(from_python(config, ())))
            async with open_session(job, folder, progress) as session:
                await prove_weights(session)
                await Orchestrator(session).run()
                progress.note(f"engine at {session.pool.clients[0].url}")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(path.parent.name.startswith("step-") for path in files)
    assert [path for path in files if b"s3cret" in path.read_bytes() or b"t0ken" in path.read_bytes()] == []
    assert "engine at http://***@127.0.0.1" in shown.getvalue()


def test_what_only_we_may_read(tmp_path: Path) -> None:
    with SnapshotStore(str(tmp_path)) as store:
        assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700, "weights"
        assert stat.S_IMODE((store.folder / LOCK).stat().st_mode) == 0o600
    learner = LearnerClient(RunConfig.model_validate({"learner": {"devices": ["cpu"]}}), tmp_path / "logs")
    learner._processes()
    settings, _ = learner._scratch
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600, "settings of the learner's processes"
