"""A run's key changes with everything that its numbers depend on."""

import os
from pathlib import Path
from typing import Any

import pytest
from ablation_cases import toy_study

from asyncgrpo.ablation.design.arms import arms_of, runs_of
from asyncgrpo.ablation.design.content import code_files, file_digest, module_digest, versions_of
from asyncgrpo.ablation.kinds import kind_of


def key_of(**changes: Any) -> str:
    study = toy_study(factors={"only": {"one": {}}}, **changes)
    return runs_of(study, arms_of(study))[0].key


def test_a_folder_is_known_by_its_contents(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    weights = tmp_path / "sub" / "model.safetensors"
    weights.write_bytes(b"one")
    first, status = file_digest(str(tmp_path)), weights.stat()
    weights.write_bytes(b"two")  # as long as before
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert file_digest(str(tmp_path)) != first
    weights.write_bytes(b"one")
    assert file_digest(str(tmp_path)) == first


def test_rewards_and_kinds_that_are_modules_are_known_by_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "own_code_of_a_test.py"
    keys = []
    for code in ("a = 1", "a = 2"):
        module.write_text(code)
        os.utime(module, ns=(0, len(keys)))
        reward = {"rewards": [{"path": "own_code_of_a_test:good"}]}
        own = {"study": {"name": "x", "question": "?", "kind": "own_code_of_a_test:run"}}
        keys += [key_of(base=reward), key_of(**own)]
    assert len(set(keys)) == 4
    assert module_digest("no_such_module_here:f") is None
    assert module_digest("https://host:80/x") is None


def test_the_package_is_known_by_all_code_but_what_shows() -> None:
    files = code_files()
    for name in ("learning/updates.py", "config/sections.py", "guards.py", "ablation/kinds/injected.py", "errors.py"):
        assert name in files
    for folder in ("cli/", "observe/page/", "ablation/findings/", "ablation/report/"):
        assert not [name for name in files if name.startswith(folder)]


def test_packages_are_in_the_key_and_engines_where_there_are_some() -> None:
    assert "vllm" in kind_of("asynchronous").packages
    assert kind_of("injected").packages == ("torch", "transformers", "numpy")
    found = versions_of(("numpy", "no-such-package-here"))
    assert found["numpy"]
    assert found["no-such-package-here"] is None
