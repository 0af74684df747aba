"""docs/ablations.md: the study it shows is one, and it tells all that can be expected."""

import re
from pathlib import Path
from typing import get_args

from asyncgrpo.ablation.design.arms import arms_of
from asyncgrpo.ablation.design.reading import study_from_json
from asyncgrpo.ablation.design.study import Expected
from asyncgrpo.ablation.design.study_checks import check_study
from asyncgrpo.ablation.kinds import KINDS
from asyncgrpo.config import yaml_text

TEXT = (Path(__file__).parents[2] / "docs" / "ablations.md").read_text(encoding="utf-8")
BASE = {
    "model": {"path": "m"},
    "data": {"dataset": "d.jsonl"},
    "evaluation": {"dataset": "held_out.jsonl"},
    "rewards": [{"path": "rewards.py:f"}],
    "engines": {"devices": ["cpu"]},
    "learner": {"mode": "inline", "devices": ["cpu"]},
}


def test_the_study_shown_is_one():
    block = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert block is not None
    values = yaml_text.parse(block[1], "docs/ablations.md").value
    study = study_from_json({**values, "base": BASE})
    arms = arms_of(study)
    assert len(arms) == 2 * 3 * 3 + 1
    assert {arm.role for arm in arms} == {"arm", "baseline", "aa", "positive"}
    if study.prepare is not None:
        study = study.model_copy(update={"prepare": None})
    assert len(check_study(study)) == len(arms)


def test_every_expectation_and_kind_is_told():
    for name in (*get_args(Expected), *KINDS):
        assert f"`{name}`" in TEXT or f"kind: {name}" in TEXT, name
