"""Settings of graphs behind a LangGraph server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from urllib.parse import urljoin, urlsplit

from pydantic import Field, field_validator

from agentest.agents.error_hints import ProbeResponse
from agentest.agents.protocol_probe import DetectedProtocol, EndpointProbe, ProtocolProbe
from agentest.config.agents.over_http import HttpAgent
from agentest.config.fields import PathText
from agentest.domain.tool_visibility import ToolVisibility
from agentest.plugins.protocols.approvals import Approvals


class LangGraphAgent(HttpAgent):
    """A graph behind a LangGraph server: `langgraph dev`, `langgraph up`, or a LangSmith deployment."""

    can_report: ClassVar[bool] = True  # responses show whether the graph has messages
    ways_to_see: ClassVar[tuple[str, ...]] = (
        "keep the messages of the graph in its state, under `messages`",
    )
    shows_own_calls: ClassVar[bool] = True
    tools_on_either_side: ClassVar[bool] = True
    state_refusal: ClassVar[str | None] = None
    reserved: ClassVar[Mapping[str, str]] = {
        "assistant_id": "is set by Agentest: write `assistant_id` beside `body`",
        "stream_mode": "is set by Agentest: write `streaming: true` beside `body`",
        "if_not_exists": "is set by Agentest: threads are always made where they are missing",
    }

    type: Literal["langgraph"]
    assistant_id: str | None = Field(default=None, min_length=1)
    """The graph's name or an assistant's UUID. None: the server's only assistant."""
    body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every run: `config`, `context`, `metadata`, `input`, `command` for interrupts."""
    reply: PathText | None = None
    """JMESPath of the reply in the graph's final state. None: its last message."""
    approvals: Approvals = "ask"

    @property
    def natural_visibility(self) -> ToolVisibility:
        """How calls become visible. A graph whose reply is not a message may not have messages with calls."""
        return ToolVisibility.REPORTED if self.reply is None else ToolVisibility.UNSEEN

    @field_validator("endpoint")
    @classmethod
    def _root_of_the_server(cls, value: str) -> str:
        parts = urlsplit(value)
        last = parts.path.rstrip("/").rpartition("/")[2]
        routes = ("threads", "runs", "wait", "stream", "assistants", "docs")
        if parts.query or parts.fragment or last in routes:
            raise ValueError("is the address of the LangGraph server alone, like http://localhost:2024")
        return value

    @field_validator("body")
    @classmethod
    def _shapes_of_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "input" in value and not isinstance(value["input"], Mapping):
            raise ValueError(f"`input` must be an object, found {value['input']!r:.100}")
        command = value.get("command", {"resume": None})
        if not isinstance(command, Mapping) or "resume" not in command:
            raise ValueError(
                '`command` is how interrupts are answered: {"resume": …}, with {{message}} in it'
            )
        return value


class LangGraphProbe(ProtocolProbe):
    """Finds a LangGraph server by `/info`, and its graphs by the list of assistants."""

    order = 0
    required = frozenset({"assistantid"})
    at_root = True

    def is_spoken(self, response: ProbeResponse) -> bool:
        match response.first_object:
            case {"__error__": _} | {"__interrupt__": _}:
                return True
            case {"messages": [*_, {"type": "human" | "ai" | "tool", "content": _}]}:
                return True
        return False

    async def find(self, endpoint: EndpointProbe) -> DetectedProtocol | None:
        info = await endpoint.get("/info")
        known = info.json if info is not None else None
        if not isinstance(known, Mapping) or not any(str(key).startswith("langgraph_") for key in known):
            return None
        response = await endpoint.post("/assistants/search", {})
        assistants = response.json if response is not None and isinstance(response.json, list) else []
        graphs = list(
            dict.fromkeys(a["graph_id"] for a in assistants if isinstance(a, Mapping) and "graph_id" in a)
        )
        names = f", with the graphs {', '.join(map(str, graphs))}" if graphs else ""
        more = {"assistant_id": graphs[0]} if graphs else {}
        root = urljoin(endpoint.url, "/").rstrip("/")
        return self.found(root, f"its /info is that of a LangGraph server{names}", **more)
