"""Section `curriculum`: prompts by how well they are solved already. See docs/data.md."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from asyncgrpo.config.section import Section

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class CurriculumSection(Section):
    kind: Literal["none", "pass_rate"] = "none"
    """All prompts in every epoch (`none`), or by which share of their samples passed so far (`pass_rate`)."""
    pass_reward: float = 1.0
    """A sample with at least this reward has passed."""
    low: Share = 0.2
    """Prompts of which fewer samples passed come less often: too hard for now."""
    high: Share = 0.8
    """Prompts of which more samples passed come less often: nearly solved."""
    rest_epochs: NonNegativeInt = 3
    """Epochs that prompts below `low` or above `high` sit out between two visits."""
    retire_after: PositiveInt | None = 2
    """Visits in a row in which every sample passed; then a prompt comes no more. If all are retired, all come again.
    Absent: none is retired."""

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        given = sorted(name for name, info in CurriculumSection.model_fields.items() if self._differs(name, info))
        if self.kind == "none" and given:
            raise ValueError(f"curriculum.{given[0]} has no effect with curriculum.kind=none; set kind to pass_rate")
        if self.low > self.high:
            raise ValueError(
                f"curriculum.low={self.low:g} is above curriculum.high={self.high:g}; no prompt is between them"
            )
        return self

    def _differs(self, name: str, info: object) -> bool:
        return bool(getattr(self, name) != getattr(info, "default", None))
