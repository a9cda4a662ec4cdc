"""Features of the core, registered the same way as those of every plug-in."""

from agentest.plugin import Plugin

plugin = Plugin("core")
plugin.agent_type(
    "chat_completions",
    settings="agentest.config.agents.chat_completions:ChatCompletionsAgent",
    client="agentest.agents.chat_completions:open_agent",
    probe="agentest.agents.core_probes:ChatCompletionsProbe",
    help="a chat-completions endpoint",
    words="openai ollama vllm litellm client-tools",
    docs="agents",
)
plugin.agent_type(
    "asgi",
    settings="agentest.config.agents.chat_completions:AsgiAgent",
    client="agentest.agents.chat_completions:open_agent",
    help="an ASGI application with chat completions",
    docs="agents",
)
plugin.agent_type(
    "custom",
    settings="agentest.config.agents.in_process:CustomAgent",
    client="agentest.agents.python_agent:open_agent",
    help="the agent object in Python",
    words=(
        "python function handler pydanticai openai openaiagents openaiagentssdk googleadk langchain "
        "langgraphserver langgraphplatform"
    ),
    docs="agents-in-python",
)
plugin.agent_object(
    "ASGI application",
    classes="fastapi:FastAPI starlette:Starlette",
    advice="ASGI applications are run by `type: asgi`, with `app`",
)
plugin.agent_type(
    "http",
    settings="agentest.config.agents.http:HttpTemplateAgent",
    client="agentest.agents.http.client:open_agent",
    probe="agentest.agents.core_probes:HttpProbe",
    help="an API of its own",
    words=(
        "fastapi flask django express node nodejs go golang java spring rest restapi api json sse webhook "
        "openai openaiagents openaiagentssdk"
    ),
    docs="agents/http",
)
plugin.call_source("handlers", "agentest.runner.call_sources:open_handlers")
plugin.engine("local", "agentest.runner.engines:LocalEngineProvider", help="This process.")
plugin.engine("workers", "agentest.workers.engine:ForkedEngineProvider", help="Several processes.")
plugin.reporter("console", "agentest.report.console.reporter:make_reporter", help="What broke and why.")
plugin.reporter("agent", "agentest.report.agent:make_reporter", help="The same for coding agents.")
plugin.reporter("json", "agentest.report.json:make_reporter", help="All results.", file="results.json")
plugin.reporter("github-actions", "agentest.report.github:make_reporter", help="Annotations and a summary.")
plugin.reporter("junit", "agentest.report.junit:make_reporter", help="For CI servers.", file="junit.xml")
for section, name, path, help in (
    ("Run and compare", "run", "run_command:run", "Run scenarios and report which passed."),
    ("Run and compare", "runs", "stored_runs:runs", "List the stored runs."),
    ("Run and compare", "show", "stored_runs:show", "Print a stored run again."),
    ("Run and compare", "compare", "comparison:compare", "Compare two runs: what regressed, what improved."),
    ("Run and compare", "merge", "merge:merge", "Merge the shards of several machines into one run."),
    ("Judges", "judge", "judge:judge", "Judge the conversations of a run again."),
):
    plugin.command(name, f"agentest.cli.{path}", section=section, help=help)
plugin.format(".csv", "agentest.scenarios.rows:csv_rows", of="rows")
plugin.format(".tsv", "agentest.scenarios.rows:csv_rows", of="rows")
plugin.format(".jsonl", "agentest.scenarios.rows:json_lines", of="rows")
plugin.format(".json", "agentest.scenarios.rows:json_rows", of="rows")
plugin.format(".ndjson", "agentest.scenarios.rows:json_lines", of="rows")
plugin.command("plugins", "agentest.cli.plugins:plugins", help="List the plug-ins, and what each adds.")
