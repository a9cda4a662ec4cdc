"""What the words of `agentest eval [AGENT] FILE_OR_DIR…` mean: which agent, and which files and folders.

The agent may come first, as for `adk eval`. A word that is a file, or a folder of evaluation sets, is no
agent, unless the folder is a package with a `root_agent` and other words follow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentest.adk.formats.targets import EVAL_SET_SUFFIX, eval_sets_in, parse_target
from agentest.config.agents.adk import AdkModuleAgent
from agentest.support.errors import UsageError
from agentest.support.files import user_bytes
from agentest.support.redact import HIDDEN
from agentest.support.spelling import nearest

_SPEAKS_OF_AGENT = re.compile(rb"\b(root_agent|get_agent_async)\b")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_IN_JAVASCRIPT = ("agent.ts", "agent.js", "agent.mjs", "agent.cjs")


@dataclass(frozen=True, slots=True)
class Words:
    """What was read from the words."""

    agent: str | AdkModuleAgent | None
    """A name, a URL, or a package; None: the agent that is configured."""
    targets: tuple[str, ...]
    """Files, folders, and `FILE:CASE,…`."""


def read_words(words: Sequence[str], option: str | None, names: Collection[str]) -> Words:
    """Tell the agent from the targets. Raises UsageError for words that are neither, or name two agents.

    Args:
        option: the agent that `--agent` names.
        names: the agents that the configuration knows.
    """
    _refuse_empty(words)
    first, rest = words[0], words[1:]
    leading = _leading_agent(first, rest, names)
    if leading is None:
        _refuse_late_agent(rest, names)
        return Words(_by_option(option, names), _in_folder(words, Path()))
    if option is not None:
        named = f"{without_password(first)}, and --agent {without_password(option)}"
        raise UsageError(f"two agents are named: {named}; leave one of them out")
    if not rest:
        raise UsageError(
            f"{without_password(first)} is an agent; name the files or folders of evaluation sets after it: "
            "agentest eval AGENT FILE_OR_DIR"
        )
    return Words(leading, _in_folder(rest, agent_folder(first) or Path()))


def agent_folder(word: str) -> Path | None:
    """The folder of the google-adk agent that a path or a dotted name stands for; None: it is none."""
    folder = Path(*word.split(".")) if _DOTTED.fullmatch(word) else Path(word)
    files = [folder / "agent.py", folder / "__init__.py"]
    return folder if any(_speaks_of_agent(file) for file in files) else None


def without_password(url: str) -> str:
    """A URL that can be shown, be it well formed or not.

    A password that ends the address too early, at its /, is no password in the eyes of `redact`.
    """
    return re.sub("//.*@", f"//{HIDDEN}@", url, flags=re.S)


def _refuse_empty(words: Sequence[str]) -> None:
    """Refuse a word without letters: as a path it would be the working directory with all that is in it."""
    if not all(word.strip() for word in words):
        raise UsageError(
            "one of the words is empty (a variable without a value?); name the files or folders of "
            "evaluation sets, or . for the working directory"
        )


def _refuse_late_agent(rest: Sequence[str], names: Collection[str]) -> None:
    """Refuse an agent that stands after the files."""
    late = next((word for word in rest if "://" in word or (word in names and not Path(word).exists())), None)
    if late and not _set_of_id(late, Path()):
        raise UsageError(
            f"{without_password(late)} is an agent, and stands after files; name it first: "
            "agentest eval AGENT FILE_OR_DIR"
        )


def _speaks_of_agent(file: Path) -> bool:
    try:
        return bool(_SPEAKS_OF_AGENT.search(user_bytes(file)))
    except (OSError, ValueError):  # ValueError: a null character in the path
        return False


def _by_option(option: str | None, names: Collection[str]) -> str | AdkModuleAgent | None:
    """The agent that `--agent` names: a package, where no agent of the configuration has that name."""
    if option is None or option in names or "://" in option or not agent_folder(option):
        return option
    return _in_package(option)


def _in_package(word: str) -> AdkModuleAgent:
    return AdkModuleAgent(type="adk_module", module=word)


def _leading_agent(first: str, rest: Sequence[str], names: Collection[str]) -> str | AdkModuleAgent | None:
    """The agent that the first word names; None where it is a target. Raises UsageError."""
    if "://" in first:
        return first
    is_package = bool(agent_folder(first))
    if _is_target(first, names) and not (is_package and rest):
        _refuse_what_is_neither(first, rest)
        return None
    if first in names:
        return first
    if is_package:
        return _in_package(first)
    if _looks_like_a_file(first):
        return None  # whoever reads it says that it is not there
    raise UsageError(f"{first} is neither a file nor a folder, and no agent: {_agents(first, names)}")


def _is_target(word: str, names: Collection[str]) -> bool:
    """Whether a word is a file or a folder; a folder that is called like an agent must hold sets for that."""
    path = Path(parse_target(word)[0])
    if path.is_dir():
        return not (word in names or agent_folder(word)) or bool(eval_sets_in(path))
    return path.exists() or _set_of_id(word, Path()) is not None


def _refuse_what_is_neither(first: str, rest: Sequence[str]) -> None:
    """Refuse a folder that stands where an agent stands for ADK, but is none that can be run here."""
    folder = Path(first)
    if not rest or not folder.is_dir():
        return
    script = next((name for name in _IN_JAVASCRIPT if (folder / name).is_file()), None)
    if script:
        raise UsageError(
            f"{first} holds an agent in another language ({script}), which does not run in this process: "
            "start it behind a server, and name its URL or its configured name in place of the folder"
        )
    if not eval_sets_in(folder):
        raise UsageError(
            f"{first} is neither an agent (no root_agent in its agent.py or __init__.py) nor a folder with "
            "evaluation sets"
        )


def _looks_like_a_file(word: str) -> bool:
    return ".json" in word or "/" in word or "\\" in word


def _agents(first: str, names: Collection[str]) -> str:
    if not names:
        return "no configuration names any; give a URL, or a folder whose agent.py has a root_agent"
    close = nearest(first, names)
    known = ", ".join(f"`{name}`" for name in sorted(names))
    return f"did you mean `{close}`?" if close else f"the configuration has {known}"


def _in_folder(targets: Sequence[str], folder: Path) -> tuple[str, ...]:
    """The targets; one that is the id of a set in the agent's folder, as ADK keeps them, by its path."""
    return tuple(_set_of_id(target, folder) or target for target in targets)


def _set_of_id(target: str, folder: Path) -> str | None:
    name, cases = parse_target(target)
    file = folder / f"{name}{EVAL_SET_SUFFIX}"
    if Path(name).exists() or not file.is_file():
        return None
    return f"{file}:{','.join(cases)}" if cases else str(file)
