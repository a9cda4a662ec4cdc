"""Agent objects of Python frameworks, run in this process, with their tools mocked; and litellm."""

from agentest.plugin import Plugin

_HERE = __package__

plugin = Plugin("frameworks")
plugin.agent_type(
    "adk_module",
    settings=f"{_HERE}.adk_settings:AdkModuleAgent",
    client=f"{_HERE}.google_adk:open_agent",
    help="a google-adk agent in Python",
    words="googleadk session-state",
    docs="adk-agents",
)
for name, opener, classes, help in (
    ("pydantic-ai", "pydantic_ai:open_object", "pydantic_ai:AbstractAgent", "an Agent"),
    ("OpenAI Agents SDK", "openai_agents:open_object", "agents.agent:AgentBase", "an Agent"),
    ("LangGraph", "langchain:open_graph", "langgraph.pregel:Pregel", "a compiled graph"),
    (
        "LiveKit Agents",
        "voice_pipelines:open_livekit",
        "livekit.agents:Agent livekit.agents:AgentSession",
        "a function that makes an Agent or a started AgentSession",
    ),
    (
        "Pipecat",
        "voice_pipelines:open_pipecat",
        "pipecat.pipeline:Pipeline",
        "a function that makes a Pipeline without transport",
    ),
    ("LangChain", "langchain:open_runnable", "langchain_core:Runnable", "a Runnable that takes messages"),
):
    plugin.agent_object(name, f"{_HERE}.{opener}", classes=classes, help=help)
plugin.agent_object(
    "google-adk",
    f"{_HERE}.google_adk:open_object",
    classes="google.adk:BaseAgent google.adk:BaseNode google.adk:App",
    help="an agent or an App",
    section=f"{_HERE}.adk_settings:agent_section",
)
plugin.agent_object(
    "graph that is not compiled",
    classes="langgraph:StateGraph",
    advice="it is not compiled: name what its `.compile()` returns",
)
plugin.agent_object(
    "client of a LangGraph server",
    classes="langgraph.pregel:RemoteGraph",
    advice="it is a client of a server: test that server (agentest docs agents)",
)
plugin.hook("agentest.mocks.wrap", f"{_HERE}.function_tools:wrap")
for name in ("adk", "langchain", "openai_agents", "pydantic_ai"):
    plugin.hook(f"agentest.mocks.{name}", f"{_HERE}.tool_gate:{name}")
plugin.hook("models.litellm", f"{_HERE}.litellm_models:open_model")
