"""`agentest plugins`: which plug-ins are loaded, from where, and what each adds."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence

import click

from agentest.cli.location import Location
from agentest.cli.options import exits, flag, where
from agentest.plugin import KINDS, PLUGINS, Feature
from agentest.support.errors import ExitCode
from agentest.support.features import FeatureOwner
from agentest.support.terminal import clean, say

_INDENT, _WIDTH = 24, 100
_OF_MODULE = re.compile(r"^(agentest\.\w+)\.\w+$")


@click.command()
@where
@flag("--json as_json", "Print all features as JSON, with where each is handed in.")
@exits
def plugins(location: Location, as_json: bool) -> ExitCode:
    """List the plug-ins that are loaded: where each comes from, and what it adds.

    Exit status: 0 all could be loaded, 2 one could not, or hands in a name that another has.
    """
    is_read = location.enter().read_plugins()
    PLUGINS.read_all()
    if as_json:
        say(json.dumps([_as_json(plugin) for plugin in PLUGINS.plugins], indent=2))
    else:
        for plugin in PLUGINS.plugins:
            for row in _rows(plugin):
                say(clean(row))
    return ExitCode.PASSED if is_read and not PLUGINS.problems else ExitCode.ERRORED


def _rows(plugin: FeatureOwner) -> Iterator[str]:
    needs = f", needs {plugin.requires}" if plugin.requires else ""
    yield f"{plugin.name} ({plugin.source}{needs})"
    for kind, features in _by_kind(plugin):
        # One name for all that a public module gets, such as the fifty of agentest.adk.
        names = ", ".join(dict.fromkeys(_OF_MODULE.sub(r"\1.*", feature.name) for feature in features))
        heading = f"  {kind}".ljust(_INDENT)
        yield from textwrap.wrap(
            f"{heading}{names}", _WIDTH, subsequent_indent=" " * _INDENT, break_on_hyphens=False
        )


def _by_kind(plugin: FeatureOwner) -> Iterator[tuple[str, Sequence[Feature]]]:
    for kind in KINDS:
        if features := [feature for feature in plugin.features if feature.kind == kind]:
            yield kind, features


def _as_json(plugin: FeatureOwner) -> dict[str, object]:
    adds = {
        kind: [{"name": each.name, "path": each.path, "place": each.place} for each in features]
        for kind, features in _by_kind(plugin)
    }
    return {"name": plugin.name, "from": plugin.source, "requires": plugin.requires, "adds": adds}
