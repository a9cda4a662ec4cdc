"""Agent objects of Python frameworks, run in this process, with their tools mocked."""

from agentest.plugin import Plugin

plugin = Plugin("frameworks")
plugin.agent_type(
    "adk_module",
    settings="agentest.config.agents.in_process:AdkModuleAgent",
    client="agentest.plugins.frameworks.google_adk:open_agent",
    docs="adk-agents",
)
