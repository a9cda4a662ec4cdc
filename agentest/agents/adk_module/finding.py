"""From a module's name, or a folder, to the google-adk agent in it, as google-adk's own tools look for it."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from types import ModuleType
from typing import Any

from dotenv import load_dotenv

from agentest.config.fields import Given
from agentest.support.calling import words_of
from agentest.support.errors import ConfigError
from agentest.support.importing import Imports

_LOGGERS = ("google_adk", "google_genai")
_IMPORTED_LATE = (
    "flows.llm_flows.auto_flow",
    "auth.auth_preprocessor",
    "models.google_llm",
    "apps.compaction",
)
"""What google-adk would import in the first turn: seconds that would be the agent's."""
_LOOKED_FOR = "`root_agent`, `get_agent_async` or `app`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A google-adk agent."""

    agent: Any
    app: Any = None
    """The `App` around it: plugins, caches. None: there is none."""
    app_name: str
    """What sessions are kept under where nobody names an app: the App's name, else the module's."""
    closes: Any = None
    """An exit stack that came with the agent."""


async def find_agent(source: str | Given, agent_name: str | None, root: Path) -> Found:
    """The agent of a module (`pkg.my_agent`), a folder (`agents/my_agent`), or the one that was given.

    Raises ValueError that says what is missing; of a module, whatever it raises is told in it.
    """
    found = _given(source.value) if isinstance(source, Given) else await _in_module(source, root)
    if agent_name is None:
        return found
    chosen = found.agent.find_agent(agent_name)
    if chosen is None:
        names = ", ".join(f"`{name}`" for name in _names(found.agent))
        raise ValueError(f"there is no agent {agent_name!r} in it; there are {names}")
    return Found(agent=chosen, app=found.app, app_name=found.app_name, closes=found.closes)


def _names(agent: Any) -> Iterator[str]:
    yield agent.name
    for sub_agent in getattr(agent, "sub_agents", None) or ():
        yield from _names(sub_agent)


def _given(value: Any) -> Found:
    if _is_app(value):
        return Found(agent=value.root_agent, app=value, app_name=value.name)
    return Found(agent=value, app_name=value.name)


def _is_app(value: Any) -> bool:
    return isinstance(value, importlib.import_module("google.adk.apps.app").App)


async def _in_module(source: str, root: Path) -> Found:
    name, modules = _imported(source, root)
    for module in modules:
        app = getattr(module, "app", None)
        app = app if _is_app(app) else None
        agent, closes = await _agent_of(module)
        if agent is None and app is not None:
            agent = app.root_agent
        if agent is not None:
            _check_agent(agent, module.__name__)
            return Found(agent=agent, app=app, app_name=app.name if app else name, closes=closes)
    raise ValueError(f"module {modules[0].__name__!r} has no {_LOOKED_FOR}, and neither has its `agent`")


def _check_agent(agent: Any, module: str) -> None:
    """Raise ValueError for what google-adk cannot run: a class in place of an agent, or something else."""
    if not any(kind.__module__.startswith("google.adk.") for kind in type(agent).__mro__):
        raise ValueError(f"the agent of module {module!r} is none of google-adk's, but {agent!r:.100}")


async def _agent_of(module: Any) -> tuple[Any, Any]:
    """The agent of a module, and what is to be closed with it; (None, None) where it has none."""
    agent = getattr(module, "root_agent", None)
    factory = getattr(module, "get_agent_async", None)
    if agent is not None or not callable(factory):
        return agent, None
    try:
        made = factory()
        made = await made if isawaitable(made) else made
    except Exception as error:
        raise ValueError(f"get_agent_async raised {type(error).__name__}: {words_of(error)}") from error
    return made if isinstance(made, tuple) else (made, None)


def _imported(source: str, root: Path) -> tuple[str, list[Any]]:
    """The module's own name, and where its agent may be: in its `agent`, or in itself."""
    folder = Path(root, source)
    load_dotenv(
        folder / ".env", override=False
    )  # the keys of its model lie there, as google-adk's tools have it
    if not _is_path(source):
        return _import(source, root)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {source!r} in {root}")
    return _import(folder.resolve().name, folder.resolve().parent)


def _is_path(source: str) -> bool:
    return source.startswith(".") or "/" in source or os.sep in source


def _import(name: str, parent: Path) -> tuple[str, list[Any]]:
    try:
        with Imports().importable(parent):
            module = importlib.import_module(name)
            inner = getattr(module, "agent", None) or _agent_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's module may raise anything, sys.exit() too
        raise ValueError(f"importing {name!r} failed: {type(error).__name__}: {words_of(error)}") from error
    own = name.removesuffix(".agent").rpartition(".")[2]
    return own, [inner, module] if inner is not None else [module]


def _agent_module(module: ModuleType) -> ModuleType | None:
    """The module `agent` of a package whose `__init__` does not import it."""
    if not hasattr(module, "__path__") or importlib.util.find_spec(f"{module.__name__}.agent") is None:
        return None
    return importlib.import_module(f"{module.__name__}.agent")


def load_google_adk(name: str) -> None:
    """Import google-adk. Raises ConfigError where it is not installed.

    Its log is left to the user: unless something is set up for it, Python would write a traceback of a
    hundred lines for each error of the agent, which is in the results.
    """
    for logger in _LOGGERS:
        logging.getLogger(logger).addHandler(logging.NullHandler())
    try:
        importlib.import_module("google.adk.runners")
        for module in _IMPORTED_LATE:
            with suppress(ModuleNotFoundError):
                importlib.import_module(f"google.adk.{module}")
    except ImportError as error:
        raise ConfigError(
            f"agent {name!r} runs in this process by google-adk, which cannot be imported ({error}). "
            "Install it: pip install google-adk. Or start the agent with `adk api_server`, and test it as "
            "`type: adk`"
        ) from None
