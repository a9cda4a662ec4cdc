"""Features by name: who hands them in, and the registry that finds them.

What implements a feature is a path, so that nothing is imported before it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any, Literal, get_args

from agentest.support.errors import AgentestError, ConfigError
from agentest.support.terminal import tell

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
        plugin: FeatureOwner,
        place: str,
        help: str,
        facts: Mapping[str, str],
    ) -> None:
        self.kind, self.name, self.path, self.help = kind, name, path, help
        self.plugin, self.place, self.facts = plugin, place, facts

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of plug-in {self.plugin.name!r} ({self.place})"

    def load(self, fact: str = "", of: type = object) -> Any:
        """Import and return what implements the feature, or what one of its facts names.

        Args:
            of: the class of which it must be an instance or a subclass.

        Raises PluginError if it cannot be imported, or is something else.
        """
        path = self.facts[fact] if fact else self.path
        module, _, attribute = path.partition(":")
        try:
            target = import_module(module)
            target = getattr(target, attribute) if attribute else target
        except (Exception, SystemExit) as error:
            requires = self.plugin.requires
            missing = error.name if isinstance(error, ModuleNotFoundError) else "agentest"
            if requires and f"{missing}.".partition(".")[0] != "agentest":
                raise PluginError(
                    f"{self.kind} {self.name!r} needs {requires!r}: pip install {requires!r}"
                ) from error
            raise self.problem(f"cannot be imported from {path!r}", error) from error
        if not (isinstance(target, of) or (isinstance(target, type) and issubclass(target, of))):
            raise PluginError(f"{self}: {path!r} is not of the class {of.__module__}.{of.__qualname__}")
        return target

    def call(self, *arguments: Any, fact: str = "") -> Any:
        """Load a function and call it. What it raises becomes a PluginError, except for errors of ours."""
        function = self.load(fact)
        try:
            return function(*arguments)
        except AgentestError:
            raise
        except Exception as error:
            raise self.problem("failed", error) from error

    def problem(self, what: str, error: BaseException) -> PluginError:
        """Return the error that says what the plug-in did, and where."""
        return PluginError(f"{self} {what}: {type(error).__name__}: {error}{_place_of(error)}")


class FeatureOwner:
    """The owner of features. `agentest.plugin.Plugin` has a method for each kind."""

    def __init__(self, name: str, *, requires: str = "") -> None:
        self.name = name
        self.requires = requires
        self.source = self.module = ""
        """`core`, `built in`, the configuration, or the name and version of an installed package."""
        self.features: list[Feature] = []

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
        self.plugins: list[FeatureOwner] = []  # those that have been read so far
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
        """Return a feature by its name. Raises PluginError that suggests a name if no plug-in has it."""
        if feature := self.find(kind, name):
            return feature
        from agentest.support.text import did_you_mean  # no command that succeeds needs it

        raise PluginError(f"there is no {kind} {name!r}; {did_you_mean(name, self.all(kind))}")

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

    def owner_of(self, error: BaseException) -> FeatureOwner | None:
        """Return the plug-in whose code raised an error; None if it was Agentest's, or not a plug-in's."""
        packages = {
            path.partition(":")[0].partition(".")[0]: plugin
            for plugin in self.plugins
            for path in (plugin.module, *(feature.path for feature in plugin.features))
        }
        ours = __name__.partition(".")[0]  # with the plug-ins that are built in
        packages[ours] = FeatureOwner(ours)
        owner, trace = packages[ours], error.__traceback__
        while trace is not None:
            package = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
            owner, trace = packages.get(package, owner), trace.tb_next
        return None if owner is packages[ours] else owner

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
            with redirect_stdout(sys.stderr):  # the output of a command may be JSON
                plugin = import_module(module).plugin
        except (Exception, SystemExit) as error:
            where = _place_of(error)
            raise PluginError(
                f"plug-in {module!r} ({source}) cannot be loaded: {type(error).__name__}: {error}{where}"
            ) from error
        if not isinstance(plugin, FeatureOwner):
            raise PluginError(f"plug-in {module!r} ({source}): `plugin` is not an agentest.plugin.Plugin")
        self._modules.add(module)
        plugin.source, plugin.module = source, module
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
    trace = error.__traceback__
    place = ""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").split("._")[0] not in (__name__, "importlib"):
            place = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next
    return place
