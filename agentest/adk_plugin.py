"""The plugin by which mocks answer the tools of an agent behind google-adk's own server.

It runs in the agent's environment, where Agentest may not be installed: `on_path/agentest_adk.py` is one file
that needs google-adk alone. `python -m agentest.adk_plugin` prints it, to be put beside an agent.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "on_path"
"""What stands on the PYTHONPATH of a server that Agentest starts: nothing but the plugin is in it."""
