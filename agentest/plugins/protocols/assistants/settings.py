"""Settings of agents that speak OpenAI's Assistants API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from agentest.config.agents.over_http import HttpAgent
from agentest.config.agents.tools import AgentTool, join_texts, text_of, tools_in
from agentest.config.fields import AtLeastOne


class AssistantsAgent(HttpAgent):
    """An agent that speaks OpenAI's Assistants API, as the threads of Azure AI Foundry do."""

    templated: ClassVar[tuple[str, ...]] = ("headers", "body")
    default_path: ClassVar[str] = "/v1"
    reserved: ClassVar[Mapping[str, str]] = {
        "assistant_id": "is a key of its own: write `assistant_id` next to `endpoint`",
        "stream": "is set by Agentest: write `streaming: true`",
    }
    can_report: ClassVar[bool] = True  # tools that the server runs

    type: Literal["assistants"]
    endpoint: Annotated[str, Field(validate_default=True)] = ""
    """The URL before `/threads`."""
    assistant_id: str = Field(min_length=1)
    api_version: str | None = None
    """Sent as `api-version`, which Azure requires."""
    body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each run, such as `instructions`."""
    poll_ms: AtLeastOne = 500
    """Pause between two requests for the state of a run, in milliseconds."""

    @property
    def sent_instructions(self) -> str:
        return join_texts(
            [text_of(self.body.get("instructions")), text_of(self.body.get("additional_instructions"))]
        )

    @property
    def sent_tools(self) -> tuple[AgentTool, ...]:
        return tools_in(self.body)
