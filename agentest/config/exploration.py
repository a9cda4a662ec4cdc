"""The section `explore` of the configuration: what `agentest explore` tries, and how much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, field_validator

from agentest.config.fields import AtLeastOne, NotNegative, Section, no_bool
from agentest.domain.results.exploration import INVARIANTS
from agentest.support.text import did_you_mean

ExplorePart = Literal["faults", "injections", "mutations"]


class ShrinkSettings(Section):
    """How far findings are reduced."""

    conversations: NotNegative = 60
    """Conversations for reducing one finding."""
    max_runs: AtLeastOne = 40
    """Conversations for deciding about one reduction."""
    error: Annotated[float, BeforeValidator(no_bool), Field(gt=0, le=0.5)] = 0.05
    """The chance that a reduction is accepted although it lost the finding."""


class CanarySettings(Section):
    """The tool that injections try to make the agent call."""

    tool: str = Field(min_length=1)


class ExploreSettings(Section):
    """Settings of `agentest explore`."""

    conversations: AtLeastOne = 200
    """Conversations in all, including those that confirm and reduce findings."""
    parts: list[ExplorePart] = Field(default_factory=lambda: list(get_args(ExplorePart)))
    confirm: AtLeastOne = 5
    """Conversations that confirm a finding."""
    shrink: ShrinkSettings = Field(default_factory=ShrinkSettings)
    report_rate: NotNegative = 20
    """Fresh conversations that measure how often a finding occurs."""
    found: str = Field(default="scenarios/found", min_length=1)
    """The folder for scenarios of findings."""
    corpus: str = Field(default=".agentest/corpus", min_length=1)
    """The folder for what is worth trying again."""
    invariants: dict[str, bool | str] = Field(default_factory=dict)
    """Invariants that are switched off, and the `reason`."""
    writes: list[str] = Field(default_factory=list)
    """Tools that change something; names may have wildcards."""
    parties: dict[str, str] = Field(default_factory=dict)
    """Tool → the argument that names who receives what it sends."""
    canary: CanarySettings | None = None

    @field_validator("invariants", mode="before")
    @classmethod
    def _known_invariants(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        off = []
        for name, setting in value.items():
            if name == "reason":
                if not isinstance(setting, str) or not setting.strip():
                    raise ValueError("`reason`: say in words why invariants are switched off")
            elif name not in INVARIANTS:
                raise ValueError(f"there is no invariant {name!r}; {did_you_mean(str(name), INVARIANTS)}")
            elif not isinstance(setting, bool):
                raise ValueError(f"{name}: expected true or false, found {setting!r}")
            elif not setting:
                off.append(name)
        if off and "reason" not in value:
            raise ValueError(f'{off[0]} is switched off without a reason; add `reason: "…"`')
        return value

    @field_validator("parts")
    @classmethod
    def _some_part(cls, value: list[str]) -> list[str]:
        if not value:
            raise ValueError("is empty; name faults, injections or mutations")
        return list(dict.fromkeys(value))

    @property
    def switched_off(self) -> Mapping[str, str]:
        """The invariants that are switched off, each with the reason."""
        reason = str(self.invariants.get("reason", ""))
        return {name: reason for name, on in self.invariants.items() if on is False}
