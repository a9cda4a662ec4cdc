"""What this package adds to Agentest. Nothing is imported before it is used."""

from agentest.plugin import Plugin

plugin = Plugin("acme")
plugin.metric("apologies", "acme_agentest.metric:Apologies", help="Apologies in a reply.")
plugin.reporter("csv", "acme_agentest.reporter:make_reporter", help="A table.", file="results.csv")
plugin.command("slowest", "acme_agentest.command:slowest", help="Print the slowest replies of a run.")
plugin.format(
    "acme",
    "acme_agentest.traces:read_record",
    of="trace",
    recognize="acme_agentest.traces:is_record",
    help="Records of Acme's assistants.",
)
plugin.agent_type(
    "acme",
    settings="acme_agentest.agent_type:AcmeAgent",
    client="acme_agentest.agent_type:open_agent",
    help="an assistant of Acme",
)
plugin.call_source("acme-log", "acme_agentest.call_log:open_call_log")
plugin.engine("gentle", "acme_agentest.engine:GentleEngine", help="Run one conversation after another.")
