"""The page: reports in a browser, talks with the agent, cases and labels."""

from agentest.plugin import Plugin

plugin = Plugin("page")
plugin.reporter("html", "agentest.plugins.page.html:make_reporter", help="A page.", file="report.html")
plugin.command(
    "ui",
    "agentest.plugins.page.commands.ui:ui",
    section="Run and compare",
    after="show",
    help="Show runs, talk to the agent and write cases on a page.",
)
plugin.command(
    "chat",
    "agentest.plugins.page.commands.chat:chat",
    section="Start",
    after="docs",
    help="Talk to the agent yourself, with a scenario's mocks.",
)
plugin.command(
    "label",
    "agentest.plugins.page.commands.calibrate:label",
    section="Judges",
    after="judge",
    help="Label conversations yourself.",
)
plugin.command(
    "calibrate",
    "agentest.plugins.page.commands.calibrate:calibrate",
    section="Judges",
    after="label",
    help="Measure how well judge and people agree.",
)
