"""Agent types beyond chat completions and HTTP: each folder hands in its own in its `__init__`."""

from importlib import import_module

from agentest.plugin import Plugin, folders_with

plugin = Plugin("protocols")
for folder in folders_with("__init__.py", __file__.removesuffix("plugin.py")):
    import_module(f"{__package__}.{folder}").hand_in(plugin)
