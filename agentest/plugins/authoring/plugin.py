"""Help for writing tests: init, doctor, generate, import, record, coverage, and tools for coding agents."""

from agentest.plugin import Plugin

plugin = Plugin("authoring")
plugin.command(
    "init",
    "agentest.plugins.authoring.commands.project:init",
    section="Start",
    help="Write a configuration and a first scenario.",
)
plugin.command(
    "doctor",
    "agentest.plugins.authoring.commands.project:doctor",
    section="Start",
    help="Check that everything a run needs is in place.",
)
plugin.command(
    "docs",
    "agentest.plugins.authoring.commands.docs:docs",
    section="Start",
    help="Print a page of the documentation, or list the topics.",
)
plugin.command(
    "schema",
    "agentest.plugins.authoring.commands.project:schema",
    section="Start",
    help="Print the JSON Schema by which editors check files.",
)
plugin.command(
    "record-tools",
    "agentest.plugins.authoring.commands.record_tools:record_tools",
    section="Write tests",
    help="Record the results of real tools as mocks.",
)
plugin.command(
    "export",
    "agentest.plugins.authoring.commands.export:export",
    section="Write tests",
    help="Turn conversations of a run into test cases.",
)
plugin.command(
    "import",
    "agentest.plugins.authoring.commands.row_import:import_",
    section="Write tests",
    help="Write a scenario file for rows of data.",
)
plugin.command(
    "generate",
    "agentest.plugins.authoring.commands.generate:generate",
    section="Write tests",
    help="Write scenarios for the agent's rules and tools.",
)
plugin.command(
    "coverage",
    "agentest.plugins.authoring.commands.coverage:coverage",
    section="Write tests",
    help="Show what has tests, and which tools were called.",
)
plugin.command(
    "skill",
    "agentest.plugins.authoring.commands.skill:skill",
    section="Coding agents",
    help="Teach a coding agent to write and repair scenarios.",
)
plugin.command(
    "mcp",
    "agentest.plugins.authoring.commands.mcp:mcp",
    section="Coding agents",
    help="Serve Agentest's tools to coding agents over MCP.",
)
for form, help in (
    ("otlp", "Spans and logs of OpenTelemetry (GenAI)."),
    ("langfuse", "Traces and observations of Langfuse."),
    ("langsmith", "Runs of LangSmith."),
    ("phoenix", "Spans of OpenInference, as Phoenix exports them."),
    ("adk", "Sessions of Google ADK."),
    ("agentest", "Results and journals of runs."),
    ("openai", "Requests to OpenAI's API."),
    ("jsonl", "Messages, or objects with `messages`."),
):
    module = "agentest.plugins.authoring.trace_forms"
    plugin.format(form, f"{module}:read_{form}", of="trace", recognize=f"{module}:is_{form}", help=help)
for form, help in (
    ("evalset", "An evaluation set of Google ADK."),
    ("scenario", "Scenarios in Python."),
    ("yaml", "Scenarios in YAML."),
):
    plugin.format(form, f"agentest.plugins.authoring.export:{form.upper()}", of="export", help=help)
plugin.check("scenarios", "agentest.plugins.authoring.doctor:check_scenarios")
plugin.check("output", "agentest.plugins.authoring.doctor:check_output")
plugin.check("agent", "agentest.plugins.authoring.agent_checks:check_agents")
plugin.check("model", "agentest.plugins.authoring.doctor:check_models_and_price")
plugin.hook("agentest run --record-tools", "agentest.plugins.authoring.commands.record_tools:record_run")
