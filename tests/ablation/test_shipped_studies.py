"""Every study in configs/studies is one that would be run."""

import json
from pathlib import Path

import pytest

from asyncgrpo.ablation.design.arms import arms_of, make_run
from asyncgrpo.ablation.design.reading import read_study
from asyncgrpo.ablation.design.study import Prepare
from asyncgrpo.ablation.design.study_checks import check_study
from asyncgrpo.ablation.running.preparation import prepared
from asyncgrpo.errors import ConfigError

ROOT = Path(__file__).parents[2]
STUDIES = sorted(path for path in ROOT.joinpath("configs", "studies").glob("*.yaml") if "_base" not in path.name)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.name)
def test_is_a_study_with_expectations(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    study = read_study(path)
    assert check_study(study)
    assert study.expectations


def test_smollm_trains_and_evaluates_on_other_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    study = read_study(ROOT / "configs" / "studies" / "smollm.yaml")
    assert study.prepare is not None
    settings = prepared(tmp_path, study.prepare, 1)
    config = make_run(study, arms_of(study)[1], 1).with_settings(settings).config()
    assert (config.buffer.max_staleness, config.training.max_steps) == (4, 40)
    train, held_out = (
        [tuple(json.loads(line)["answer"]) for line in Path(name).read_text().splitlines()]
        for name in (config.data.dataset, config.evaluation.dataset)
    )
    assert (len({*train}), len({*held_out}), {*train} & {*held_out}) == (256, 64, set())
    assert prepared(tmp_path, study.prepare, 2) != settings


def test_options_that_the_task_does_not_have(tmp_path: Path) -> None:
    path = "asyncgrpo.ablation.tasks.repeat:prepare"
    with pytest.raises(ConfigError, match=r"prepare\.options has \['prompt'\], and this task prompts and held_out"):
        prepared(tmp_path, Prepare(path=path, options={"prompt": 3}), 0)
    with pytest.raises(ConfigError, match=r"prepare\.options: 3025 prompts, and there are 3024; ask for fewer"):
        prepared(tmp_path, Prepare(path=path, options={"prompts": 3000, "held_out": 25}), 0)
