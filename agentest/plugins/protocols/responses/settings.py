"""Settings of agents that speak OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentest.agents.error_hints import ProbeResponse
from agentest.agents.protocol_probe import ProtocolProbe, detect_type, missing_parameter
from agentest.config.agents.over_http import HttpAgent
from agentest.config.agents.tools import join_texts, system_text, text_of


class History(StrEnum):
    """Where the history of a conversation is stored."""

    INPUT = "input"  # Agentest sends the whole history with every request
    PREVIOUS_RESPONSE_ID = "previous_response_id"  # the server stores it; requests name the previous response
    CONVERSATION = "conversation"  # the server stores it; requests name the conversation


class ResponsesAgent(HttpAgent):
    """An agent that speaks OpenAI's Responses API over HTTP."""

    default_path: ClassVar[str] = "/v1/responses"
    shows_own_calls: ClassVar[bool] = True
    declares_tools: ClassVar[bool] = True
    tools_on_either_side: ClassVar[bool] = True
    reports_own_calls: ClassVar[bool] = True

    type: Literal["responses"]
    body: dict[str, Any] = Field(default_factory=dict)
    history: History = History.INPUT

    @property
    def sent_instructions(self) -> str:
        return join_texts([text_of(self.body.get("instructions")), system_text(self.body.get("input"))])

    @field_validator("body")
    @classmethod
    def _input_is_a_list(cls, value: dict[str, Any]) -> dict[str, Any]:
        items = value.get("input", [])
        if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
            raise ValueError("`input` is put before the conversation and must be a list of items")
        return value

    @model_validator(mode="after")
    def _one_history(self) -> Self:
        if "conversation" in self.body and self.history is not History.CONVERSATION:
            raise ValueError(
                "body.conversation makes the server store the conversation, and history: "
                f"{self.history.value} would send it twice; write history: conversation"
            )
        return self


class ResponsesProbe(ProtocolProbe):
    """Finds a Responses endpoint by its answer or error for a message, here or at the usual paths."""

    order = 2
    usual_paths = ("/v1/responses", "/responses")
    path_end = "/v1/responses"
    required = frozenset({"input"})
    names_model = True

    def is_spoken(self, response: ProbeResponse) -> bool:
        answer = response.first_object
        is_event = str(answer.get("type", "")).startswith("response.")
        is_whole = answer.get("object") == "response" or {"output", "status", "id"} <= answer.keys()
        return is_event or is_whole or missing_parameter(answer) == "input"

    def first_body(self, messages: list[dict[str, Any]], model: Mapping[str, str]) -> dict[str, Any]:
        return {**model, "input": messages}

    def evidence(self, response: ProbeResponse) -> str | None:
        match response.json:
            case {"object": "response", "output": _}:
                return "it answers with a `response` object"
            case {"error": {**error}} if error.get("param") == "input" or "'input'" in str(
                error.get("message")
            ):
                return "it asks for the `input` of a response"
        is_one = response.is_success and detect_type(response) == self.kind
        return "it answers with the events of a response" if is_one else None
