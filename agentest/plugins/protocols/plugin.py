"""Agent types beyond chat completions and HTTP: each folder hands in its own in its `__init__`."""

from importlib import import_module
from pathlib import Path

from agentest.plugin import Plugin

plugin = Plugin("protocols")
for folder in sorted(path.parent.name for path in Path(__file__).parent.glob("*/__init__.py")):
    import_module(f"{__package__}.{folder}").hand_in(plugin)
