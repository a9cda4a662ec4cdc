"""Google ADK's evaluation sets: formats, metrics and Python classes."""

from agentest.plugin import Plugin

plugin = Plugin("adk")
plugin.command(
    "eval",
    "agentest.cli.run_commands:evaluate",
    section="ADK evaluation sets",
    help="Run evaluation sets against the agent.",
)
plugin.command(
    "eval-set",
    "agentest.plugins.adk.command:eval_set",
    section="ADK evaluation sets",
    help="Create evaluation sets, and add cases.",
)
plugin.command(
    "migrate",
    "agentest.plugins.adk.command:migrate",
    section="ADK evaluation sets",
    help="Convert an old evaluation set.",
)
