"""docs/objective.md: every recipe is a configuration, and every choice there is explained."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from asyncgrpo.config import yaml_text
from asyncgrpo.config.objective import CORRECTION_CAPS, CORRECTION_MINIMA, GATE_CAPS, GATE_THRESHOLDS, ObjectiveSection
from asyncgrpo.config.objective_checks import PRODUCT_GATES
from asyncgrpo.config.problems import METHODS, validate

PAGE = (Path(__file__).parents[2] / "docs" / "objective.md").read_text()

RECIPES: dict[str, dict[str, Any]] = {
    name: yaml_text.parse(settings, name).value
    for name, settings in re.findall(r"^\| ([^|]+) \| [^|]+ \| `(\{.*?\})` \|", PAGE, re.MULTILINE)
}

PAPERS = """
    GRPO Dr._GRPO DAPO GSPO GSPO-token LUSPO GMPO CISPO ScaleRL SAPO VESPO TOPR AIPO LlamaRL PipelineRL DPPO M2PO
    Dual_clip INTELLECT-2 DeepSeek-V3.2 TIS MIS IcePop GeoRS k3-RS Veto Decoupled_PPO AReaL A-3PO RLOO REINFORCE++
    Lite-PPO MaxRL GDPO KL_by_k2 Entropy_bonus
"""


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_configuration(name: str) -> None:
    generation = {"max_completion_length": 20480}
    assert f"`generation.max_completion_length: {generation['max_completion_length']}`" in PAGE
    objective = validate({"objective": RECIPES[name], "generation": generation}).objective
    assert objective.model_dump(include=set(RECIPES[name])) == RECIPES[name]


def test_no_recipe_is_missing_and_no_two_are_the_same() -> None:
    names = " ".join(RECIPES)
    assert [paper for paper in PAPERS.split() if paper.replace("_", " ") not in names] == []
    assert len({str(sorted(settings.items())) for settings in RECIPES.values()}) == len(RECIPES)


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
            rows.setdefault(first.strip("`"), others)
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
