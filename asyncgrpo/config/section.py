"""The base of every section of a configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(gt=0.0, le=1.0)]
PathText = Annotated[str, Field(pattern=r"^[^\x00]*$")]
"""No file has a NUL character in its name."""
AtLeastTiny = Annotated[float, Field(ge=1e-30)]
"""A factor or divisor of float32 tensors, in which what is much smaller becomes 0."""


class Section(BaseModel):
    """Unknown keys are refused; a built configuration never changes. Errors do not repeat values: they may hold
    logins."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        hide_input_in_errors=True,
    )
