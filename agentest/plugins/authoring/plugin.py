"""Help for writing tests: init, doctor, generate, import, record, coverage, and tools for coding agents."""

from agentest.plugin import Plugin

plugin = Plugin("authoring")
for section, name, path, help in (
    ("Start", "init", "project:init", "Write a configuration and a first scenario."),
    ("Start", "doctor", "project:doctor", "Check that everything a run needs is in place."),
    ("Start", "docs", "docs:docs", "Print a page of the documentation, or list the topics."),
    ("Start", "schema", "project:schema", "Print the JSON Schema by which editors check files."),
    (
        "Write tests",
        "record-tools",
        "record_tools:record_tools",
        "Record the results of real tools as mocks.",
    ),
    ("Write tests", "export", "project:export", "Turn conversations of a run into test cases."),
    ("Write tests", "import", "row_import:import_", "Write a scenario file for rows of data."),
    ("Write tests", "generate", "generate:generate", "Write scenarios for the agent's rules and tools."),
    ("Write tests", "coverage", "coverage:coverage", "Show what has tests, and which tools were called."),
    ("Coding agents", "skill", "project:skill", "Teach a coding agent to write and repair scenarios."),
    ("Coding agents", "mcp", "mcp:mcp", "Serve Agentest's tools to coding agents over MCP."),
):
    plugin.command(name, f"agentest.plugins.authoring.commands.{path}", section=section, help=help)
for form, reader, help in (
    ("otlp", "otlp", "Spans and logs of OpenTelemetry (GenAI)."),
    ("langfuse", "langfuse", "Traces and spans of Langfuse, Braintrust, Weave, Opik and MLflow."),
    ("langsmith", "langfuse", "Runs of LangSmith."),
    ("phoenix", "phoenix", "Spans of OpenInference, as Phoenix exports them."),
    ("agentest", "agentest", "Results and journals of runs."),
    ("openai", "openai", "Requests to OpenAI's API."),
    ("adk", "jsonl", "Sessions of Google ADK."),
    ("atif", "jsonl", "Trajectories of ATIF, as Harbor writes them."),
    ("jsonl", "jsonl", "Messages, or objects with messages, of agents and platforms."),
):
    module = "agentest.plugins.authoring.trace_forms"
    plugin.format(form, f"{module}:read_{reader}", of="trace", recognize=f"{module}:is_{reader}", help=help)
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
plugin.hook("agentest judge TRACES", "agentest.plugins.authoring.trace_import:recorded_conversations")
