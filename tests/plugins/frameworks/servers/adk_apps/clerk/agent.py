"""The agent for `adk api_server`: its tools come from an MCP server, or are its own (SHOP_TOOLS=own)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent.parent))
from google_adk_tools_server import make_agent, shop_tools

root_agent = make_agent(shop_tools(os.environ.get("SHOP_TOOLS", "mcp"), "none"))
