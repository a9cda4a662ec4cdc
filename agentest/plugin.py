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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, Literal, cast, get_args

from agentest.support.errors import AgentestError, ConfigError
from agentest.support.terminal import tell

GROUP = "agentest.plugins"
"""The group of entry points."""
Kind = Literal[
    "agent type",
    "agent object",
    "call source",
    "engine",
    "reporter",
    "command",
    "metric",
    "change",
    "trace format",
    "rows format",
    "export format",
    "evaluation set format",
    "check",
    "hook",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
FormatOf = Literal["trace", "rows", "export", "evaluation set"]


class PluginError(ConfigError):
    """A plug-in cannot be loaded, or hands in what cannot be used."""


class Feature:
    """One feature of a plug-in.

    Attributes:
        path: what implements it: `module:attribute`.
        place: file and line where it is handed in.
        facts: further settings of its kind, such as the section of a command; others are import paths.
    """

    def __init__(
        self,
        kind: Kind,
        name: str,
        path: str,
        plugin: Plugin,
        place: str,
        help: str,
        facts: Mapping[str, str],
    ) -> None:
        self.kind, self.name, self.path, self.help = kind, name, path, help
        self.plugin, self.place, self.facts = plugin, place, facts

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of plug-in {self.plugin.name!r} ({self.place})"

    def load(self, fact: str = "") -> Any:
        """Import and return what implements the feature, or what one of its facts names.

        Raises PluginError if that cannot be imported.
        """
        path = self.facts[fact] if fact else self.path
        module, _, attribute = path.partition(":")
        try:
            target = import_module(module)
            return getattr(target, attribute) if attribute else target
        except Exception as error:
            requires = self.plugin.requires
            if requires and isinstance(error, ModuleNotFoundError) and not _is_ours(error.name):
                raise PluginError(
                    f"{self.kind} {self.name!r} needs {requires!r}: pip install {requires!r}"
                ) from error
            raise self.problem(f"cannot be imported from {path!r}", error) from error

    def call(self, *arguments: Any, fact: str = "") -> Any:
        """Load a function and call it. What it raises becomes a PluginError, except for errors of ours."""
        function = self.load(fact)
        try:
            return function(*arguments)
        except AgentestError:
            raise
        except Exception as error:
            raise self.problem("failed", error) from error

    def problem(self, what: str, error: Exception) -> PluginError:
        """Return the error that says what the plug-in did, and where."""
        return PluginError(f"{self} {what}: {type(error).__name__}: {error}{_place_of(error)}")


def _is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "agentest"


class Plugin:
    """What one package hands in.

    Args:
        name: shown by `agentest plugins` and in errors.
        requires: what must be installed beside Agentest, as a requirement for pip; "" if nothing.
    """

    def __init__(self, name: str, *, requires: str = "") -> None:
        self.name = name
        self.requires = requires
        self.source = ""
        """`core`, `built in`, the configuration, or the name and version of an installed package."""
        self.features: list[Feature] = []

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

    def call_source(self, name: str, path: str, *, worker: str = "") -> None:
        """Hand in a source of tool calls that do not arrive by the agent's protocol.

        It serves the agents whose settings have the name in `call_sources`.

        Args:
            path: function that opens it for a run, an `agentest.runner.call_sources.OpenCallSources`.
            worker: function that opens its end in a worker, an `OpenWorkerEnd` of the same module. Without
                one, each process that runs conversations opens a source of its own.
        """
        self._add("call source", name, path, worker=worker)

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

    def _add(self, kind: Kind, name: str, path: str, help: str = "", **facts: str) -> None:
        caller = sys._getframe(2)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        facts = {key: value for key, value in facts.items() if value}
        self.features.append(Feature(kind, name, path, self, place, help, facts))


ReadSource = Callable[[], Iterator[tuple[str, str]]]
"""Yields the modules of a source of plug-ins, each with the words that describe the source."""


class PluginRegistry:
    """The features of all plug-ins.

    Args:
        sources: where plug-ins are, in the order in which they are read.
        warn: receives a message about each plug-in that cannot be loaded; the others still work.
    """

    def __init__(self, sources: Iterable[ReadSource], warn: Callable[[str], object] = tell) -> None:
        self.plugins: list[Plugin] = []
        """Those that have been read so far."""
        self.problems: list[str] = []
        self._unread = list(sources)
        self._warn = warn
        self._features: dict[Kind, dict[str, Feature]] = {kind: {} for kind in KINDS}
        self._modules: set[str] = set()

    def find(self, kind: Kind, name: str) -> Feature | None:
        """Return a feature by its name, or None if no plug-in has it. Reads as few sources as possible."""
        found = self._features[kind]
        while name not in found and self._unread:
            self._read(self._unread.pop(0))
        return found.get(name)

    def get(self, kind: Kind, name: str) -> Feature:
        """Return a feature by its name. Raises PluginError if no plug-in has it."""
        if feature := self.find(kind, name):
            return feature
        raise PluginError(f"no plug-in has the {kind} {name!r}; `agentest plugins` lists what there is")

    def all(self, kind: Kind) -> dict[str, Feature]:
        """Return all features of a kind by name, those of the core first."""
        self.read_all()
        return dict(self._features[kind])

    def read_all(self) -> None:
        """Read every source."""
        while self._unread:
            self._read(self._unread.pop(0))

    def load_all(self, kind: Kind, fact: str) -> dict[str, Any]:
        """Import what a fact names, for all features of a kind that have it.

        A feature that cannot be imported is reported and left out.
        """
        loaded: dict[str, Any] = {}
        for name, feature in self.all(kind).items():
            try:
                loaded |= {name: feature.load(fact)} if fact in feature.facts else {}
            except PluginError as error:
                self._report(str(error))
        return loaded

    def hook(self, name: str, plugin: str) -> Any:
        """Load what a plug-in of ours hands in for the core. Raises PluginError if it is not loaded."""
        hook = self.find("hook", name)
        if hook is None:
            raise PluginError(f"{name} needs the plug-in {plugin!r}, which is not loaded (agentest plugins)")
        return hook.load()

    def add(self, module: str, source: str) -> None:
        """Read the plug-in of a module that a configuration names, once.

        Raises PluginError if it cannot be loaded.
        """
        while len(self._unread) > 1:  # all but installed packages come first, whatever was looked for before
            self._read(self._unread.pop(0))
        self._add(module, source)

    def _add(self, module: str, source: str) -> None:
        if module in self._modules:
            return
        try:
            plugin = import_module(module).plugin
        except Exception as error:
            where = _place_of(error)
            raise PluginError(
                f"plug-in {module!r} ({source}) cannot be loaded: {type(error).__name__}: {error}{where}"
            ) from error
        if not isinstance(plugin, Plugin):
            raise PluginError(f"plug-in {module!r} ({source}): `plugin` is not an agentest.plugin.Plugin")
        self._modules.add(module)
        plugin.source = source
        self.plugins.append(plugin)
        for feature in plugin.features:
            first = self._features[feature.kind].setdefault(feature.name, feature)
            if first is not feature:
                self._report(
                    f"plug-in {plugin.name!r} ({source}; {feature.place}) hands in the {feature.kind} "
                    f"{feature.name!r}, which plug-in {first.plugin.name!r} has already ({first.place}): "
                    "rename it"
                )

    def _read(self, source: ReadSource) -> None:
        for module, words in source():
            try:
                self._add(module, words)
            except PluginError as error:
                self._report(str(error))

    def _report(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
            self._warn(f"agentest: {problem}")


def _place_of(error: BaseException) -> str:
    """Return the innermost file and line of an error outside of this module, for a message."""
    trace = error.__traceback__
    place = ""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").split("._")[0] not in (__name__, "importlib"):
            place = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next
    return place


def core_plugin() -> Iterator[tuple[str, str]]:
    """Yield the module by which the core hands in its own features."""
    yield "agentest.core", "core"


def built_in_plugins() -> Iterator[tuple[str, str]]:
    """Yield the plug-ins that come with Agentest: each folder of `agentest/plugins` with a `plugin.py`."""
    for name in folders_with("plugin.py", f"{__file__.removesuffix('plugin.py')}plugins"):
        yield f"agentest.plugins.{name}.plugin", "built in"


def folders_with(file: str, folder: str) -> list[str]:
    """Return the names of the folders in a folder that contain a file, in order."""
    found: list[str] = []
    with suppress(FileNotFoundError):
        found += (entry.name for entry in os.scandir(folder) if os.access(f"{entry.path}/{file}", os.F_OK))
    return sorted(found)


def installed_plugins() -> Iterator[tuple[str, str]]:
    """Yield the plug-ins of installed packages."""
    if not any(map(_may_have_plugins, sys.path)):
        return
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        yield point.module, f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def _may_have_plugins(folder: str) -> bool:
    """Return False if no package in a folder of sys.path has an entry point of ours.

    Looking costs a tenth of importing `importlib.metadata`, which most runs of `agentest --help` save so.
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


def public_name(module: str, name: str, plugin: str) -> Any:
    """Return a name of a public module whose names plug-ins hand in, for its `__getattr__`.

    The hook `MODULE.NAME` says what it is; `__all__` lists these. `plugin` is the plug-in of ours with names
    of the module. Raises AttributeError.
    """
    if name == "__all__":
        hooks = (hook.rpartition(".") for hook in PLUGINS.all("hook"))
        return sorted(last for first, _, last in hooks if first == module)
    hook = None if name.startswith("_") else PLUGINS.find("hook", f"{module}.{name}")
    if hook is not None:
        return hook.load()
    problem = f"module {module!r} has no attribute {name!r}"
    if not name.startswith("_") and all(each.name != plugin for each in PLUGINS.plugins):
        problem += f": the plug-in {plugin!r} has more names, and is not loaded (see agentest plugins)"
    raise AttributeError(problem, name=name)
