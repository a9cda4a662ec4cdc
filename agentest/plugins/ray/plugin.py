"""The engine that runs conversations on a Ray cluster."""

from agentest.plugin import Plugin

plugin = Plugin("ray", requires="agentest-sim[ray]")
plugin.engine("ray", "agentest.plugins.ray.engine:RayEngineProvider", help="A Ray cluster.")
