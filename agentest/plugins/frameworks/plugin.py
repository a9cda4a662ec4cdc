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
plugin.agent_object(
    "pydantic-ai", f"{_HERE}.pydantic_ai:open_object", classes="pydantic_ai:AbstractAgent", help="an Agent"
)
plugin.agent_object(
    "OpenAI Agents SDK",
    f"{_HERE}.openai_agents:open_object",
    classes="agents.agent:AgentBase",
    help="an Agent",
)
plugin.agent_object(
    "LangGraph", f"{_HERE}.langchain:open_graph", classes="langgraph.pregel:Pregel", help="a compiled graph"
)
plugin.agent_object(
    "google-adk",
    f"{_HERE}.google_adk:open_object",
    classes="google.adk:BaseAgent google.adk:BaseNode google.adk:App",
    help="an agent or an App",
    section=f"{_HERE}.adk_settings:agent_section",
)
plugin.agent_object(
    "LiveKit Agents",
    f"{_HERE}.voice_pipelines:open_livekit",
    classes="livekit.agents:Agent livekit.agents:AgentSession",
    help="a function that makes an Agent or a started AgentSession",
)
plugin.agent_object(
    "Pipecat",
    f"{_HERE}.voice_pipelines:open_pipecat",
    classes="pipecat.pipeline:Pipeline",
    help="a function that makes a Pipeline without transport",
)
plugin.agent_object(
    "LangChain",
    f"{_HERE}.langchain:open_runnable",
    classes="langchain_core:Runnable",
    help="a Runnable that takes messages",
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
