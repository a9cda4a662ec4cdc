"""Exploration: changed scenarios, what must hold for all of them, and the smallest that fails."""

from agentest.plugin import Plugin

plugin = Plugin("explore")
plugin.hook("attacking user", "agentest.plugins.explore.attacker:attacking_user")
plugin.command(
    "explore",
    "agentest.plugins.explore.command:explore",
    section="Run and compare",
    after="compare",
    help="Find failures that no test was written for.",
)
plugin.hook("agentest.claims_of_success", "agentest.plugins.explore.claims:claims_of_success")
plugin.hook("prompts of attacks", "agentest.plugins.explore.attacker:PROMPTS", prompts="others")
