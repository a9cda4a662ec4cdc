"""Print the plugin for google-adk's own server, by which mocks answer an agent's tools there.

It runs in the environment of the agent, where Agentest may not be installed, so it is one file that needs
google-adk alone: `python -m agentest.adk_plugin > agentest_adk.py`.
"""

import sys

from agentest.plugin import public_name

if __name__ == "__main__":
    sys.stdout.write(public_name("agentest.adk_plugin", "FILE", "protocols").read_text(encoding="utf-8"))
