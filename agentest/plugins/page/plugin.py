"""The page: reports in a browser, talks with the agent, cases and labels."""

from agentest.plugin import Plugin

plugin = Plugin("page")
plugin.hook("agentest show --open", "agentest.plugins.page.report:page_of_run")
plugin.reporter("html", "agentest.plugins.page.report:make_reporter", help="A page.", file="report.html")
for section, name, path, after, help in (
    ("Run and compare", "ui", "ui:ui", "show", "Show runs, talk to the agent and write cases on a page."),
    ("Start", "chat", "chat:chat", "docs", "Talk to the agent yourself, with a scenario's mocks."),
    ("Judges", "label", "calibrate:label", "judge", "Label conversations yourself."),
    ("Judges", "calibrate", "calibrate:calibrate", "label", "Measure how well judge and people agree."),
    ("Judges", "show-prompts", "calibrate:show_prompts", "calibrate", "Show the prompts of the judges."),
):
    plugin.command(name, f"agentest.plugins.page.commands.{path}", section=section, after=after, help=help)
