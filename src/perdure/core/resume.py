"""A person's decision, as a value. Strict about types; unknown fields are dropped as the reference says, with a
warning each."""

from __future__ import annotations

import warnings
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Resume(BaseModel):
    """An answer to a question. `approved` and `metadata` are the only two fields: whatever else there is to say goes
    into `metadata`.

    `approved` must be a bool: "yes", 1 and "true" are refused (pydantic `ValidationError`).
    """

    model_config = ConfigDict(strict=True, frozen=True)

    approved: bool
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _warn_of_dropped(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name in data:
                if name not in ("approved", "metadata"):
                    warnings.warn(
                        f"Resume has no field {name!r}: its value is dropped; put it in metadata",
                        UserWarning,
                        stacklevel=4,
                    )
        return data
