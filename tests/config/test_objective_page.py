"""docs/objective.md: every recipe is a configuration, and every choice there is explained."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from asyncgrpo.config import RunConfig, yaml_text
from asyncgrpo.config.objective import CORRECTION_CAPS, CORRECTION_MINIMA, GATE_CAPS, GATE_THRESHOLDS, ObjectiveSection
from asyncgrpo.config.objective_checks import PRODUCT_GATES
from asyncgrpo.config.problems import METHODS, validate
from asyncgrpo.learning.objectives.remarks import remarks_on

PAGE = (Path(__file__).parents[2] / "docs" / "objective.md").read_text()

RECIPES: dict[str, dict[str, Any]] = {
    name: yaml_text.parse(settings, name).value
    for name, settings in re.findall(r"^\| ([^|]+) \| [^|]+ \| `(\{.*?\})` \|", PAGE, re.MULTILINE)
}

BESIDE = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| `\{.*?\}` \| ?(.*) \|$", PAGE, re.MULTILINE))
"""What a recipe needs beside its objective."""

TABLES = (
    *("advantage_baseline", "scale_rewards", "importance_sampling_correction", "importance_sampling_level"),
    *("gate", "loss_type", "kl_estimator", "proximal_anchor"),
)

OF_THE_CLIP = {"epsilon", "epsilon_high", "delta", "dual_clip"}


def configured(name: str, **training: int) -> RunConfig:
    """The recipe with what it needs beside its objective."""
    sections: dict[str, dict[str, Any]] = {"objective": RECIPES[name], "training": {}}
    for section, field, value in re.findall(r"`(\w+)\.(\w+): (\S+)`", BESIDE[name]):
        sections.setdefault(section, {})[field] = yaml_text.parse(value, name).value
    sections["training"] |= training
    return validate(sections)


PAPERS = """
    GRPO Dr._GRPO DAPO GSPO GSPO-token LUSPO GMPO CISPO ScaleRL SAPO VESPO TOPR AIPO LlamaRL PipelineRL DPPO M2PO
    Dual_clip INTELLECT-2 DeepSeek-V3.2 TIS MIS IcePop GeoRS k3-RS Veto Decoupled_PPO AReaL A-3PO RLOO REINFORCE++
    Lite-PPO MaxRL GDPO KL_by_k2 Entropy_bonus
"""


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_configuration(name: str) -> None:
    config = configured(name)
    assert config.objective.model_dump(include=set(RECIPES[name])) == RECIPES[name]


def test_no_recipe_is_missing_and_no_two_are_the_same() -> None:
    names = " ".join(RECIPES)
    assert [paper for paper in PAPERS.split() if paper.replace("_", " ") not in names] == []
    assert len({str(sorted(settings.items())) for settings in RECIPES.values()}) == len(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_that_one_update_makes_inert_asks_for_more(name: str) -> None:
    config = configured(name, num_minibatches=1)
    inert = " ".join(remark for remark in remarks_on(config) if remark.startswith("with one optimiser update"))
    own = {f"objective.{key}={value} " for key, value in RECIPES[name].items()}
    does_nothing = any(setting in inert for setting in own) or (
        "gate=clip does" in inert and bool(OF_THE_CLIP & RECIPES[name].keys())
    )
    assert not does_nothing or "training.num_minibatches" in BESIDE[name]


def test_dapo_samples_dynamically() -> None:
    config = configured("DAPO")
    assert (config.buffer.filter_uniform_groups, config.refilled_groups) == (True, 80)


@pytest.mark.parametrize("field", TABLES)
def test_the_default_of_a_table_is_marked(field: str) -> None:
    rows = PAGE.split(f"\n| `{field}` |", 1)[1].split("\n\n", 1)[0]
    marked = re.findall(r"^\| `(\w+)` \(default\)", rows, re.MULTILINE)
    assert marked == [ObjectiveSection.model_fields[field].default]


@pytest.mark.parametrize("field", ObjectiveSection.model_fields)
def test_every_setting_and_every_choice_is_on_the_page(field: str) -> None:
    assert field in PAGE or field.startswith(("sapo_", "vespo_"))
    choices = [c for c in get_args(ObjectiveSection.model_fields[field].annotation) if isinstance(c, str)]
    assert [choice for choice in choices if f"`{choice}`" not in PAGE] == []


def test_the_bounds_on_the_page_are_the_defaults() -> None:
    rows: dict[str, list[str]] = {}
    for line in PAGE.splitlines():
        if line.startswith("|"):
            first, *others = (cell.strip() for cell in line.split("|")[1:-1])
            rows.setdefault(first.split(" ")[0].strip("`"), others)
    for correction, cap in CORRECTION_CAPS.items():
        low = CORRECTION_MINIMA.get(correction)
        assert rows[correction][2] == (f"≤ {cap:g}" if low is None else f"{low:g} to {cap:g}")
    for gate in {*GATE_CAPS, *GATE_THRESHOLDS}:
        bounds = [f"{table[gate]:g}" for table in (GATE_CAPS, GATE_THRESHOLDS) if gate in table]
        assert rows[gate][1] == "; ".join(bounds)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_is_looked_for_elsewhere_is_a_choice(method: str) -> None:
    field, choice = METHODS[method].split("=")
    assert getattr(validate({"objective": {field: choice}}).objective, field) == choice
    assert method == method.lower().replace("-", "_")


def test_the_gates_on_the_product_are_the_last_ones() -> None:
    """The page says "from vespo on"."""
    gates = list(get_args(ObjectiveSection.model_fields["gate"].annotation))
    assert gates[gates.index("vespo") :] == list(PRODUCT_GATES)
