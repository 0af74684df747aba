"""Studies for tests, of a toy kind that takes no time."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from asyncgrpo.ablation.design.reading import study_from_json
from asyncgrpo.ablation.design.study import Study

TOY = Path(__file__).with_name("toy_kind.py")

TOY_STUDY: dict[str, Any] = {
    "study": {"name": "toy", "question": "Does it matter?", "kind": f"{TOY}:run"},
    "base": {"training": {"groups_per_step": 2}, "options": {"height": 1.0}},
    "factors": {
        "method": {"good": {"options.height": 1.0}, "bad": {"options.height": 0.5}},
        "staleness": {"key": "buffer.max_staleness", "values": [0, 4]},
    },
    "seeds": 2,
    "budget": {"steps": 4},
    "evaluate_every": 2,
}


def study_values(**changes: Any) -> dict[str, Any]:
    """TOY_STUDY with other values of its keys; None leaves a key out."""
    values = {**copy.deepcopy(TOY_STUDY), **changes}
    return {name: value for name, value in values.items() if value is not None}


def toy_study(**changes: Any) -> Study:
    return study_from_json(study_values(**changes))


def written(folder: Path, **changes: Any) -> Path:
    """As a file; JSON is YAML."""
    path = folder / "study.yaml"
    path.write_text(json.dumps(study_values(**changes)))
    return path
