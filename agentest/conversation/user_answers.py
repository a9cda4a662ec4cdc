"""What the model that plays a user answers: what it says next, or that the conversation is over, and why.

What is described here is sent to the model with the shape, so it speaks to the person that the model plays.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from agentest.domain.end_reason import REASONS_TO_STOP, Ending
from agentest.models.schema import UNDESCRIBED

STOP_MARK = "[[STOP]]"
NOT_ENDED = "not ended"
"""What is answered for the reason to stop while there is none."""


def _reason(value: Any) -> Any:
    """The reason in the words of REASONS_TO_STOP, whatever the letter case; nothing at all is no reason."""
    if value is None:
        return NOT_ENDED
    return value.strip().lower().replace("_", " ") or NOT_ENDED if isinstance(value, str) else value


_REASONS = (NOT_ENDED, *(reason.value for reason in REASONS_TO_STOP))
ReasonToStop = Annotated[Literal[_REASONS], BeforeValidator(_reason)]  # type: ignore[valid-type]


def ending_of(reason: str) -> Ending:
    """How a conversation ends whose user stops for this reason: satisfied where they give none."""
    return Ending.SATISFIED if reason == NOT_ENDED else Ending(reason)


class Answer(BaseModel):
    """What all answers share: their docstrings stay here."""

    model_config = ConfigDict(**UNDESCRIBED, frozen=True)


class UserMessage(Answer):
    """What a simulated user says next. `should_stop` decides; `ended_by` may be left out."""

    message: str = Field(description="What you write next. Empty when you stop.")
    should_stop: bool = Field(description="Whether one of the reasons to stop has come about.")
    ended_by: ReasonToStop = Field(default=NOT_ENDED, description="Which of the reasons to stop it is.")

    @model_validator(mode="before")
    @classmethod
    def _reason_only_with_stop(cls, data: Any) -> Any:
        """The answer; a reason that was given without stopping is none."""
        if isinstance(data, dict) and data.get("should_stop") is False and not _has_mark(data):
            return {key: value for key, value in data.items() if key != "ended_by"}
        return data

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.should_stop and not self.message.strip():
            raise ValueError("`message` is empty; say something, or set should_stop")
        return self

    @property
    def ending(self) -> Ending | None:
        """How the conversation ends by this answer; None: it goes on."""
        stops = self.should_stop or STOP_MARK in self.message
        return ending_of(self.ended_by) if stops else None


class OpeningMessage(UserMessage):
    """The first message: it is sent in any case, so it may not be empty."""

    message: str = Field(description="What you write first.")

    @model_validator(mode="after")
    def _opens(self) -> Self:
        if not self.message.replace(STOP_MARK, "").strip():
            raise ValueError("`message` is empty; a conversation begins with something said")
        return self


MAX_CALLS = 10
"""Of the user's own tools in one answer."""


def _as_text(value: Any) -> Any:
    """Arguments as JSON text: many a model writes the object itself, or nothing where there are none."""
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


class ToolUse(Answer):
    """A call of one of the user's own tools."""

    name: str = Field(description="Which of your tools.")
    arguments: Annotated[str, BeforeValidator(_as_text)] = Field(
        default="", description="Its arguments: one JSON object, as text."
    )


class Acts(Answer):
    """What a user with tools does before it says something; shown first, as it comes first."""

    tool_calls: list[ToolUse] = Field(
        default_factory=list, description="What you look up or do yourself before you write on; else empty."
    )

    @field_validator("tool_calls", mode="before")
    @classmethod
    def _none_is_empty(cls, calls: Any) -> Any:
        return [] if calls is None else calls

    @field_validator("tool_calls")
    @classmethod
    def _not_too_many(cls, calls: list[ToolUse]) -> list[ToolUse]:
        if len(calls) > MAX_CALLS:
            raise ValueError(f"these are {len(calls)} calls; make at most {MAX_CALLS} at once")
        return calls


class ActingMessage(UserMessage, Acts):
    """What a user with tools of its own does or says next. Where it does something, it says nothing yet."""

    message: str = Field(
        default="", description="What you write next. Empty when you stop, and while you use a tool."
    )
    should_stop: bool = Field(default=False, description="Whether one of the reasons to stop has come about.")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.tool_calls or self.should_stop or self.message.strip()):
            raise ValueError("`message` is empty; say something, use a tool, or set should_stop")
        return self

    @property
    def said_besides(self) -> bool:
        """Whether it says or ends something although it waits for what a tool answers."""
        return bool(self.tool_calls) and (self.should_stop or bool(self.message.strip()))


class ActingOpening(ActingMessage):
    """What a user with tools does or says first."""

    message: str = Field(default="", description="What you write first. Empty while you use a tool.")

    @model_validator(mode="after")
    def _opens(self) -> Self:
        if not self.tool_calls and not self.message.replace(STOP_MARK, "").strip():
            raise ValueError("`message` is empty; a conversation begins with something said")
        return self


def _has_mark(data: dict[str, Any]) -> bool:
    return STOP_MARK in str(data.get("message"))
