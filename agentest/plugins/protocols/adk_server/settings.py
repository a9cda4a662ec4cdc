"""Settings of agents behind google-adk's own server."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import urljoin, urlsplit

from pydantic import Field, field_validator

from agentest.agents.error_hints import ProbeResponse
from agentest.agents.protocol_probe import DetectedProtocol, EndpointProbe, ProtocolProbe
from agentest.config.agents.over_http import HttpAgent
from agentest.domain.tool_visibility import ToolVisibility
from agentest.plugins.protocols.approvals import Approvals

PLUGIN_FILE = Path(__file__).parent / "on_path" / "agentest_adk.py"
"""The plugin for google-adk's own server. Its folder, with nothing else, is on the PYTHONPATH of servers."""


class AdkAgent(HttpAgent):
    """A Google ADK agent behind its own server (`adk api_server`)."""

    natural_visibility: ClassVar[ToolVisibility] = ToolVisibility.REPORTED
    shows_own_calls: ClassVar[bool] = True
    can_run_real_tools: ClassVar[bool] = True  # a plugin in the server decides
    state_refusal: ClassVar[str | None] = None
    ways_to_mock: ClassVar[tuple[str, ...]] = (
        "have ADK's server ask the mocks: mcp_mock: true, and in its command --extra_plugins "
        "agentest_adk.MockTools",
    )

    type: Literal["adk"]
    app_name: str | None = Field(default=None, min_length=1)
    """None: the app of the case's session."""
    user_id: str | None = Field(default=None, min_length=1)
    """None: the user of the case's session, else `agentest`."""
    approvals: Approvals = "ask"

    @field_validator("app_name", "user_id")
    @classmethod
    def _part_of_an_address(cls, value: str | None) -> str | None:
        if value in (".", ".."):
            raise ValueError("becomes a part of an address, where . and .. stand for other parts")
        return value

    @field_validator("endpoint")
    @classmethod
    def _root_of_the_server(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.query or parts.fragment or parts.path.rstrip("/").endswith(("/run", "/run_sse")):
            raise ValueError("is the address of the ADK server alone, like http://localhost:8000")
        return value


_APPS_PATH = "/list-apps"


class AdkServerProbe(ProtocolProbe):
    """Finds google-adk's server, and its first app, by `/list-apps`."""

    order = 0
    required = frozenset({"appname", "userid"})
    at_root = True

    def is_spoken(self, response: ProbeResponse) -> bool:
        return {"author", "invocationId"} <= response.first_object.keys()

    async def find(self, endpoint: EndpointProbe) -> DetectedProtocol | None:
        response = await endpoint.get(_APPS_PATH)
        apps = response.json if response is not None and response.status == 200 else None
        if not isinstance(apps, list) or not apps or not all(isinstance(app, str) for app in apps):
            return None
        root = urljoin(endpoint.url, "/").rstrip("/")
        because = f"its {_APPS_PATH} lists the apps of google-adk's server"
        return self.found(root, because, app_name=apps[0])
