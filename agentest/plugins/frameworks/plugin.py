"""Agent objects of Python frameworks, run in this process, with their tools mocked."""

from agentest.plugin import Plugin

plugin = Plugin("frameworks")
plugin.agent_type(
    "adk_module",
    settings="agentest.config.agents.in_process:AdkModuleAgent",
    client="agentest.plugins.frameworks.google_adk:open_agent",
    help="a google-adk agent in Python",
    words="googleadk session-state",
    docs="adk-agents",
)
plugin.hook("agentest.mocks.wrap", "agentest.plugins.frameworks.function_tools:wrap")
for name in ("adk", "langchain", "openai_agents", "pydantic_ai"):
    plugin.hook(f"agentest.mocks.{name}", f"agentest.plugins.frameworks.tool_gate:{name}")
