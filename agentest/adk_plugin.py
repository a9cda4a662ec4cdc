"""The plugin that lets mocks answer the tools of an agent behind google-adk's own server.

It runs in the environment of the agent, where Agentest may not be installed, so it is one file that needs
google-adk alone: `plugins/protocols/adk_server/on_path/agentest_adk.py`. `python -m agentest.adk_plugin`
prints it.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "plugins" / "protocols" / "adk_server" / "on_path"
"""What stands on the PYTHONPATH of a server that Agentest starts: nothing but the plugin is in it."""

if __name__ == "__main__":
    sys.stdout.write((FOLDER / "agentest_adk.py").read_text(encoding="utf-8"))
