"""The door for plug-ins: every feature is handed in by a name and an import path.

    # my_package/plugin.py
    from agentest.plugin import Plugin

    plugin = Plugin("my-package")
    plugin.reporter("slack", "my_package.slack:make_reporter", help="Post the summary to a channel.")

Nothing is imported before it is used. Agentest finds the object `plugin` of these modules, in this order:
`agentest.core`, the folders of `agentest/plugins`, `plugins: [module]` in the configuration, and the entry
points of installed packages in the group `agentest.plugins`. The configuration's are read with it; another
source is read when the earlier ones lack a name, so a run that uses features of the core alone reads no
other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal, cast

from agentest.support.features import KINDS as KINDS
from agentest.support.features import Feature as Feature
from agentest.support.features import FeatureOwner, PluginRegistry
from agentest.support.features import Kind as Kind
from agentest.support.features import PluginError as PluginError

GROUP = "agentest.plugins"  # the group of entry points
FormatOf = Literal["trace", "rows", "export", "evaluation set"]


class Plugin(FeatureOwner):
    """What one package hands in.

    Args:
        name: shown by `agentest plugins` and in errors.
        requires: what must be installed beside Agentest, as a requirement for pip; "" if nothing.
    """

    def agent_type(
        self,
        name: str,
        *,
        settings: str,
        client: str,
        help: str,
        probe: str = "",
        words: str = "",
        docs: str = "",
    ) -> None:
        """Hand in a type of agent: `type: NAME` in the configuration.

        Args:
            settings: class of its settings, a subclass of `agentest.config.agents.base.AnyAgent`.
            client: function that opens it, an `agentest.agents.port.OpenAgent`.
            help: what speaks the protocol, for messages: "an A2A agent".
            probe: how `agentest init` and errors recognise it, a subclass of
                `agentest.agents.protocol_probe.ProtocolProbe`.
            words: names that people try for it, in lower case without punctuation, and `client-tools` if it
                hands tool calls to the caller, `session-state` if it sets and reports the session's state,
                `approvals` if the agent may ask before it acts.
            docs: address of its documentation; of a type of Agentest, the page without `.md`.
        """
        self._add("agent type", name, client, help, settings=settings, probe=probe, words=words, docs=docs)

    def agent_object(
        self, name: str, path: str = "", *, classes: str, help: str = "", advice: str = "", section: str = ""
    ) -> None:
        """Hand in a framework whose objects are agents: `handler` of `type: custom`.

        Args:
            path: function that opens one, an `agentest.agents.python_agent.OpenObject`; "" if they are run in
                another way, which `advice` describes.
            classes: `package:Class` of those whose instances are such objects, separated by spaces.
            help: what they are, for messages.
            section: function that returns the `agent` section for an object; "": `type: custom`.
        """
        self._add("agent object", name, path, help, classes=classes, advice=advice, section=section)

    def call_source(self, name: str, path: str, *, worker: str = "", tools: str = "") -> None:
        """Hand in a source of tool calls that do not arrive by the agent's protocol.

        It serves the agents whose settings have the name in `call_sources`.

        Args:
            path: function that opens it for a run, an `agentest.runner.call_sources.OpenCallSources`.
            worker: function that opens its end in a worker, an `OpenWorkerEnd` of the same module. Without
                one, each process that runs conversations opens a source of its own.
            tools: function of an agent's settings, the configuration's folder, `output_dir`, and the tools
                that mocks and trajectories name, which returns an `agentest.runner.known_tools.ServedTools`.
        """
        self._add("call source", name, path, worker=worker, tools=tools)

    def engine(self, name: str, path: str, *, help: str) -> None:
        """Hand in an engine: `--engine NAME`. `path` names an `agentest.runner.engines.EngineProvider`."""
        self._add("engine", name, path, help)

    def reporter(self, name: str, path: str, *, help: str, file: str = "") -> None:
        """Hand in a reporter: `--reporter NAME`.

        Args:
            path: function that makes it, of an `agentest.report.registry.ReporterContext` and the path of
                its file: the one that the user named, else `file` in the folder of the run, else None.
            file: name of its file in the folder of the run, if it writes one there.
        """
        self._add("reporter", name, path, help, file=file)

    def command(self, name: str, path: str, *, help: str, section: str = "Plug-ins", after: str = "") -> None:
        """Hand in a command: `agentest NAME`.

        Args:
            path: a `click.Command`.
            section: its section of `agentest --help`.
            after: the command that it follows there; "": those that were handed in before.
        """
        self._add("command", name, path, help, section=section, after=after)

    def metric(self, name: str, path: str, *, help: str = "") -> None:
        """Hand in a metric, a class as for `custom_metrics`: `metrics: [NAME]`."""
        self._add("metric", name, path, help)

    def change(self, name: str, path: str, *, help: str = "") -> None:
        """Hand in a change of users' messages, an `agentest.scenarios.mutations.Mutation`."""
        self._add("change", name, path, help)

    def format(self, name: str, path: str, *, of: FormatOf, help: str = "", recognize: str = "") -> None:
        """Hand in a format of files.

        Args:
            path: what reads or writes it; docs/plugins.md has the contract of each.
            recognize: of `trace`: function that returns True for its records.
        """
        self._add(cast("Kind", f"{of} format"), name, path, help, recognize=recognize)

    def check(self, name: str, path: str, *, help: str = "") -> None:
        """Hand in a check of `agentest doctor`."""
        self._add("check", name, path, help)

    def hook(self, name: str, path: str, **facts: str) -> None:
        """Hand in what the core asks for by this name. Most plug-ins need none."""
        self._add("hook", name, path, **facts)


def core_plugin() -> Iterator[tuple[str, str]]:
    """Yield the module by which the core hands in its own features."""
    yield "agentest.core", "core"


def built_in_plugins() -> Iterator[tuple[str, str]]:
    """Yield the plug-ins that come with Agentest: each folder of `agentest/plugins` with a `plugin.py`."""
    folder = f"{__file__.removesuffix('plugin.py')}plugins"
    with suppress(FileNotFoundError):
        for name in sorted(entry.name for entry in os.scandir(folder)):
            if os.access(f"{folder}/{name}/plugin.py", os.F_OK):
                yield f"agentest.plugins.{name}.plugin", "built in"


def installed_plugins() -> Iterator[tuple[str, str]]:
    """Yield the plug-ins of installed packages."""
    if not any(map(_may_have_plugins, sys.path)):
        return
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        yield point.module, f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def _may_have_plugins(folder: str) -> bool:
    """Return False if no package in a folder of sys.path has an entry point of ours.

    Looking costs a tenth of importing `importlib.metadata`, which most runs of `agentest --help` avoid so.
    """
    try:
        entries = os.scandir(folder or ".")
    except OSError:
        return os.access(folder, os.F_OK)  # an archive
    with entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")):
                with suppress(OSError), open(f"{entry.path}/entry_points.txt", "rb") as file:
                    if GROUP.encode() in file.read():
                        return True
    return False


PLUGINS = PluginRegistry((core_plugin, built_in_plugins, installed_plugins))
"""The features of this process. `agentest.config.file` adds the plug-ins that a configuration names."""


def if_command(name: str, advice: str) -> str:
    """Return advice that names a command, or "" if no plug-in has the command."""
    return advice if PLUGINS.find("command", name) else ""


def public_name(module: str, name: str, plugin: str, **elsewhere: str) -> Any:
    """Return a name of a public module whose names plug-ins hand in, for its `__getattr__`.

    The hook `MODULE.NAME` says what it is; `__all__` lists these. `plugin` is the plug-in of ours with names
    of the module. `elsewhere` has names of other tools, and what to use here.

    Raises AttributeError, or for a name in `elsewhere` or in another public module ImportError: `from module
    import name` shows its text.
    """
    hooks = [hook.rpartition(".") for hook in PLUGINS.all("hook")]
    if name == "__all__":
        return sorted(last for first, _, last in hooks if first == module)
    hook = None if name.startswith("_") else PLUGINS.find("hook", f"{module}.{name}")
    if hook is not None:
        return hook.load()
    problem = f"module {module!r} has no attribute {name!r}"
    homes = {last: f"from {first} import {last}" for first, _, last in hooks if first.startswith("agentest.")}
    if advice := elsewhere.get(name) or homes.get(name):
        raise ImportError(f"{problem}: {advice}", name=name)
    if not name.startswith("_") and all(each.name != plugin for each in PLUGINS.plugins):
        problem += f": the plug-in {plugin!r} has more names, and is not loaded (see agentest plugins)"
    raise AttributeError(problem, name=name)
