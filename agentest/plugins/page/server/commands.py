"""Turn requests of the page into command lines. No value from the page can become an option."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentest.plugins.page.server.json_routes import WebProject
from agentest.plugins.page.server.run_index import WebRuns
from agentest.report.agent import rerun
from agentest.store.runs.folder import RunKind
from agentest.support.errors import UsageError
from agentest.support.files import name_problem
from agentest.support.json_text import Json
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import first_names

_MOST_PLACES = 500
_MOST_CHARS = 100_000
_MOST_CONVERSATIONS = 10_000
_KEYS = {"run": {"paths", "names"}, "eval": {"file", "files", "cases"}, "rerun": {"run"}}
_OPTIONS = {"kind", "agent", "conversations", "offline", "failFast"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """A command to run: `run` or `eval`, its options and its targets."""

    command: str
    options: tuple[str, ...]
    about: tuple[str, ...]
    title: str

    @property
    def line(self) -> str:
        """The command as one writes it in a terminal."""
        separator = ["--"] if any(target.startswith("-") for target in self.about) else []
        return shlex.join(["agentest", self.command, *self.options, *separator, *self.about])

    def words(self, *more: str) -> list[str]:
        """Return the arguments after `agentest`. The targets follow `--`, so none is read as an option."""
        return [self.command, *more, *self.options, "--", *self.about]


def requested_command(values: Mapping[str, Any], project: WebProject, runs: WebRuns) -> JobCommand:
    """Return the requested command. Raises UsageError that names the invalid key."""
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise UsageError(f"`kind` must be one of {', '.join(_KEYS)}, found {kind!r:.80}")
    if unknown := sorted(set(values) - _KEYS[kind] - _OPTIONS):
        raise UsageError(f"{unknown[0][:80]!r} is not a key of a {kind}")
    if kind == "rerun":
        made = _rerun(values, project, runs)
    else:
        made = (_run if kind == "run" else _evaluation)(values, project.root)
    if len(made.about) > _MOST_PLACES or sum(map(len, made.words())) > _MOST_CHARS:
        raise UsageError(
            f"that is too much for one command line: choose whole files, or {_MOST_PLACES} at most"
        )
    return made


def _run(values: Mapping[str, Any], root: Path) -> JobCommand:
    paths = [_scenario_argument(text, root) for text in _texts(values, "paths")]
    names = _texts(values, "names")
    return JobCommand(
        command="run",
        options=(*_options(values, "--conversations"), *_by_name(names)),
        about=tuple(paths),
        title=_title([*paths, *names], "all scenarios"),
    )


def _by_name(names: Iterable[str]) -> Iterator[str]:
    return (f"--scenario=={name}" for name in names)


def _evaluation(values: Mapping[str, Any], root: Path) -> JobCommand:
    cases = _texts(values, "cases")
    files = [*_texts(values, "files"), *([values["file"]] if "file" in values else [])]
    if not files or (cases and len(files) > 1):
        raise UsageError("`file` must name an evaluation set; cases are those of one file")
    targets = [_file(file, root, (".json",)) for file in files]
    return JobCommand(
        command="eval",
        options=_options(values, "--num-runs"),
        about=(_with_cases(targets[0], cases),) if cases else tuple(targets),
        title=_title(cases or targets, "all cases"),
    )


def _with_cases(file: str, cases: Sequence[str]) -> str:
    for case in cases:
        if "," in case or case != case.strip() or not case:
            raise UsageError(
                f"the case {case[:80]!r} cannot be chosen by its id on a command line: run its file"
            )
    return f"{file}:{','.join(cases)}"


def _rerun(values: Mapping[str, Any], project: WebProject, runs: WebRuns) -> JobCommand:
    name, root = values.get("run"), project.root
    if not isinstance(name, str):
        raise UsageError("`run` must be the id of a run")
    record, failed = runs.failed(name)
    if not failed:
        raise UsageError(f"nothing failed or errored in the run {name[:80]}")
    if recorded := [each for each in failed if each["file"] and not rerun(each, several=False)]:
        judge = shlex.join(["agentest", "judge", recorded[0]["file"]])
        raise UsageError(f"{recorded[0]['name']!r} was recorded, so nothing can run it again: use {judge}")
    agents = {each["agent"] for each in failed}
    several = record is not None and len(record.agents) > 1
    only = {"agent": agents.pop()} if several and len(agents) == 1 else {}
    chosen = {**only, **{key: value for key, value in values.items() if key in _OPTIONS}}
    command, times, names, about = "run", "--conversations", tuple[str, ...](), tuple[str, ...]()
    if (record and record.kind is RunKind.EVAL) or any("evalId" in each for each in failed):
        command, times, about = "eval", "--num-runs", tuple(_cases_of(failed, root))
    elif any(not each["file"] for each in failed):  # a killed run stores only names for these
        names = tuple(dict.fromkeys(_by_name(each["name"] for each in failed)))
    else:
        places = (_scenario_argument(f"{each['file']}::{each['name']}", root) for each in failed)
        about = tuple(dict.fromkeys(places))
    return JobCommand(
        command=command,
        options=(*_options(chosen, times), *names),
        about=about,
        title=f"what failed in {name}",
    )


def _cases_of(failed: Sequence[Json], root: Path) -> Iterator[str]:
    files: dict[str, list[str]] = {}
    for each in failed:
        files.setdefault(_file(each["file"], root, (".json",)), []).append(each.get("evalId") or each["name"])
    for file, cases in files.items():
        yield _with_cases(file, list(dict.fromkeys(cases)))


def _options(values: Mapping[str, Any], times: str) -> tuple[str, ...]:
    options: list[str] = []
    if agent := values.get("agent"):
        if not isinstance(agent, str) or "://" in agent or "\0" in agent:
            raise UsageError(
                f"`agent` must be the name of an agent of the configuration, found {agent!r:.80}"
            )
        options.append(f"--agent={agent}")
    if (number := values.get("conversations")) is not None:
        if type(number) is not int or not 1 <= number <= _MOST_CONVERSATIONS:
            raise UsageError(
                f"`conversations` must be a number from 1 to {_MOST_CONVERSATIONS}, found {number!r:.80}"
            )
        options.append(f"{times}={number}")
    for key, option in (("offline", "--offline"), ("failFast", "--fail-fast")):
        if not isinstance(values.get(key, False), bool):
            raise UsageError(f"`{key}` must be true or false, found {values[key]!r:.80}")
        options += [option] if values.get(key) else []
    return tuple(options)


def _texts(values: Mapping[str, Any], key: str) -> list[str]:
    texts = values.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(each, str) and "\0" not in each for each in texts):
        raise UsageError(f"`{key}` must be a list of texts")
    return texts


def _scenario_argument(text: str, root: Path) -> str:
    path, separator, name = text.partition("::")
    return f"{_file(path, root, ('.py', ''))}{separator}{name}"


def _file(value: object, root: Path, endings: Sequence[str]) -> str:
    """Return a file or folder of the project as a command-line argument. Raises UsageError."""
    if not isinstance(value, str) or not value or name_problem(value):
        raise UsageError(f"a file of the project is expected, found {value!r:.80}")
    path = Path(value)
    resolved = (root / path).resolve()
    if path.is_absolute() or not resolved.is_relative_to(root.resolve()):
        raise UsageError(f"{value[:200]!r} is not in the project's folder")
    if path.suffix not in endings or not resolved.exists():
        raise UsageError(f"{value[:200]!r} is not a file of the project that can be run")
    return value


def _title(parts: Sequence[str], everything: str) -> str:
    return first_names(parts, 3) or everything
