"""`agentest init`: decide which files a project needs, and write those that are missing."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from zlib import crc32

import yaml

from agentest.authoring.endpoint_detection import DetectedAgent, detect_agent
from agentest.config.config import Config
from agentest.config.file import NAMES
from agentest.scenarios.discovery import search
from agentest.support.errors import UsageError
from agentest.support.files import path_from
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import clean

IGNORED = (".agentest/", ".env")
"""Entries for .gitignore: files that runs write, and keys."""
CiName = Literal["github", "gitlab"]
CONFIG = "agentest.config.yaml"
DEMO_AGENT = "demo_agent.py"
FIRST = "scenarios/first.sim.py"


class FileAction(Enum):
    """What happened to a file. The value is the word for it in messages."""

    WROTE = "wrote"
    ADDED = "added to"
    STAYS = "stays"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file, and what happened to it."""

    path: Path
    deed: FileAction
    about: str
    """A few words about the file's purpose, or why it was left unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """The files to write."""

    folder: Path
    endpoint: str | None = None
    demo: bool = False
    ci: CiName | None = None


class NextStep(Enum):
    """The user's next step."""

    WRITE = "write what `agent` is"
    LOOK = "look whether a configuration that was there is well"
    RUN = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class InitResult:
    """The result of `begin`."""

    files: tuple[WrittenFile, ...]
    notes: tuple[str, ...] = ()
    """Notes for the user, one sentence each."""
    step: NextStep = NextStep.RUN
    is_known: bool = True
    """True if the agent at the endpoint was recognized."""


def begin(request: InitRequest) -> InitResult:
    """Write the missing files. Raises UsageError before anything is written, or as its message says."""
    if request.demo and request.endpoint:
        raise UsageError("--demo and --endpoint exclude each other: the demo brings an agent of its own")
    folder = request.folder.absolute()
    existing = next((folder / name for name in NAMES if (folder / name).exists()), None)
    if request.demo:
        _check_demo(existing)
    agent = detect_agent(request.endpoint) if request.endpoint else None
    make_folder(folder)
    files = (*_project(request, folder, existing, agent), ignore(folder), *_ci(request.ci, folder))
    return InitResult(
        files=files,
        notes=tuple(_notes(request, existing, agent, files)),
        step=_next_step(request, existing, agent),
        is_known=agent is None or agent.is_known,
    )


def _next_step(request: InitRequest, existing: Path | None, agent: DetectedAgent | None) -> NextStep:
    if agent:
        return NextStep.RUN if agent.is_complete and not existing else NextStep.WRITE
    if existing and not request.demo:
        return NextStep.LOOK
    return NextStep.RUN if request.demo else NextStep.WRITE


def _check_demo(existing: Path | None) -> None:
    """Raise UsageError if the demo's scenarios would run against the user's agent."""
    if existing and DEMO_AGENT not in existing.read_text(encoding="utf-8", errors="replace"):
        raise UsageError(
            f"{existing} is there already, and the demo has a configuration of its own: name another folder, "
            "like agentest init demo --demo"
        )


def _project(
    request: InitRequest, folder: Path, existing: Path | None, agent: DetectedAgent | None
) -> Iterator[WrittenFile]:
    if existing:
        yield WrittenFile(path=existing, deed=FileAction.STAYS, about="it was there")
    else:
        yield write_new(folder / CONFIG, _config(request, folder, agent), _about_config(request, agent))
    if request.demo:
        yield write_new(folder / DEMO_AGENT, template(DEMO_AGENT), "a small agent, to try things on")
    scenario = next(iter(_scenarios(folder)), None)
    if scenario and scenario != folder / FIRST:
        yield WrittenFile(path=scenario, deed=FileAction.STAYS, about="there are scenarios")
    else:
        text = template("demo.sim.txt" if request.demo else "first.sim.txt")
        yield write_new(folder / FIRST, text, "what users do, and what must happen")


def _scenarios(folder: Path) -> tuple[Path, ...]:
    defaults = Config.model_fields
    include, exclude = (
        defaults[key].get_default(call_default_factory=True) for key in ("include", "exclude")
    )
    return search(folder, include, exclude).files


def _config(request: InitRequest, folder: Path, agent: DetectedAgent | None) -> str:
    if request.demo:
        return demo_config(port_for(folder))
    return detected_agent_config(agent.settings, agent.remarks) if agent else placeholder_config()


def _about_config(request: InitRequest, agent: DetectedAgent | None) -> str:
    if request.demo:
        return "the agent, and how it is started"
    return f"type: {agent.settings['type']}" if agent else "write your agent's address into it"


def _ci(ci: CiName | None, folder: Path) -> Iterator[WrittenFile]:
    if ci is None:
        return
    root = _repository_root(folder)
    subfolder = PurePosixPath(folder.relative_to(root).as_posix())
    if ci == "github":
        path, text = root / ".github/workflows/agentest.yml", github_workflow(subfolder)
    else:
        is_foreign = (root / ".gitlab-ci.yml").exists() and not _is_written_by_agentest(
            root / ".gitlab-ci.yml"
        )
        path = root / (".gitlab/agentest.gitlab-ci.yml" if is_foreign else ".gitlab-ci.yml")
        text = gitlab_job(subfolder)
    yield write_new(path, text, "runs the scenarios for every change")


def _is_written_by_agentest(path: Path) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(
        "# Written by `agentest"
    )


def _repository_root(folder: Path) -> Path:
    """Return the root of the folder's repository; the folder itself if there is none."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)


def _notes(
    request: InitRequest, existing: Path | None, agent: DetectedAgent | None, files: tuple[WrittenFile, ...]
) -> Iterator[str]:
    from agentest.agents.response_features import settings_line

    if agent:
        yield from agent.remarks
    if agent and existing:
        yield f"For this agent, write in {existing.name}: agent: {{{settings_line(agent.settings)}}}"
    included = next(
        (f for f in files if f.path.parent.name == ".gitlab" and f.deed is FileAction.WROTE), None
    )
    if included:
        path = path_from(_repository_root(request.folder.absolute()), included.path)
        yield f"There is a .gitlab-ci.yml already: write in it\n  include:\n    - local: {path}"


def make_folder(path: Path) -> None:
    """Create a folder with its parents. Raises UsageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{path} is a file, and a folder is expected; name another DIR") from None
    except OSError as error:
        raise _cannot_write(path, error) from None


def write_new(path: Path, text: str, about: str) -> WrittenFile:
    """Write a file and create its folder, unless the file exists. Raises UsageError."""
    if path.parent.exists() or not path.parent.is_symlink():
        make_folder(path.parent)
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        return WrittenFile(path=path, deed=FileAction.STAYS, about="it was there")
    except OSError as error:
        raise _cannot_write(path, error) from None
    return WrittenFile(path=path, deed=FileAction.WROTE, about=about)


def ignore(folder: Path) -> WrittenFile:
    """Add missing entries to .gitignore.

    Raises UsageError.
    """
    path = folder / ".gitignore"
    try:
        known = path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else None
        missing = [entry for entry in IGNORED if not _is_ignored(entry, known or "")]
        if missing:
            _append_lines(path, known, missing)
    except OSError as error:
        raise _cannot_write(path, error) from None
    if not missing:
        return WrittenFile(path=path, deed=FileAction.STAYS, about=f"it has {' and '.join(IGNORED)}")
    deed = FileAction.WROTE if known is None else FileAction.ADDED
    return WrittenFile(path=path, deed=deed, about=" and ".join(missing))


def _is_ignored(entry: str, text: str) -> bool:
    lines = {line.strip().lstrip("/").rstrip("/*") for line in text.splitlines()}
    return entry.rstrip("/") in lines


def _append_lines(path: Path, known: str | None, entries: list[str]) -> None:
    """Append lines with the file's line endings, after completing its last line."""
    end = "\r\n" if known and "\r\n" in known else "\n"
    before = end if known and not known.endswith("\n") else ""
    with path.open("ab") as file:
        file.write((before + "".join(entry + end for entry in entries)).encode())


def _cannot_write(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be written: {error.strerror or error}. What was written before it stays; "
        "see to its permissions, or name another DIR, and run agentest init again"
    )


_FIRST, _MANY = 10_000, 10_000
"""Below the ports that systems assign to outgoing connections."""


def port_for(folder: Path) -> int:
    """Return a free port, which is usually the same for the same folder.

    Two demos on one machine get different ports, so that neither mistakes the other's agent for its own.
    """
    start = crc32(str(folder.resolve()).encode("utf-8", "surrogateescape"))
    ports = (_FIRST + (start + step) % _MANY for step in range(_MANY))
    return next((port for port in ports if _is_free(port)), _FIRST)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


PLACEHOLDER = "http://localhost:8000/v1/chat/completions"
_TEMPLATES = Path(__file__).parent / "templates"
_HEAD = "# The agent under test, and how runs go. Written by `agentest init`.\n"
_CREDENTIALS = """\
  # headers: # variables are those of the environment, or of a file .env beside this one
  #   Authorization: "Bearer ${AGENT_TOKEN}"
"""
_SERVER = """\
  # server: # have the agent started before the first scenario, and ended with the run
  #   command: python my_agent.py
  #   ready: http://localhost:8000/health
"""
_REST = """
# Who plays simulated users, and judges. Without a model runs are offline: no judge is asked, all else counts.
# model: openai/gpt-5-mini # its key, OPENAI_API_KEY, stands in the environment or in .env

# conversations_per_scenario: 3 # of simulated users; scripts run once
# thresholds: {helpfulness: 4, goal_completion: 0.8, pass_rate: 0.9}
strict: true # scenarios whose verdict a warning questions are errored
reporters: [console, json]
"""


def template(name: str) -> str:
    """Return the text of a template."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def demo_config(port: int) -> str:
    """Return a configuration for the demo agent at a local port."""
    origin = f"http://127.0.0.1:{port}"
    server = {"command": f"python demo_agent.py --port {port}", "ready": f"{origin}/health"}
    agent = {"name": "demo", "endpoint": f"{origin}/v1/chat/completions", "server": server}
    return _config_text(agent, (), "")


def detected_agent_config(settings: Mapping[str, Any], remarks: tuple[str, ...]) -> str:
    """Return a configuration for a detected agent.

    Args:
        settings: the settings under `agent`. They may come from a server, so `${VAR}` in them is escaped.
        remarks: remarks about the agent, one sentence each.
    """
    return _config_text(_without_variables(settings), remarks, _CREDENTIALS + _SERVER)


def placeholder_config() -> str:
    """Return a configuration with a placeholder URL."""
    remarks = (
        "Write where your agent listens. Where it does not speak chat completions it needs a `type`: with",
        "the agent running, `agentest doctor` looks at what answers there, and says which.",
    )
    return _config_text({"endpoint": PLACEHOLDER}, remarks, _CREDENTIALS + _SERVER)


def github_workflow(folder: PurePosixPath) -> str:
    """Return a GitHub workflow for a project in this folder of its repository; `.` is the root."""
    where = f"defaults:\n      run:\n        working-directory: {_yaml_scalar(str(folder))}"
    return _placed(template("github.yml"), "    # WORKING-DIRECTORY\n", f"    {where}\n", folder)


def gitlab_job(folder: PurePosixPath) -> str:
    """Return a GitLab job for a project in this folder of its repository."""
    where = f"    - {_yaml_scalar(f'cd {shlex.quote(str(folder))}')}\n"
    return _placed(template("gitlab.yml"), "    # WORKING-DIRECTORY\n", where, folder)


def _placed(text: str, mark: str, where: str, folder: PurePosixPath) -> str:
    is_root = str(folder) == "."
    text = text.replace(mark, "" if is_root else where)
    return text.replace("FOLDER", "" if is_root else f"{folder}/")


def _config_text(agent: Mapping[str, Any], remarks: tuple[str, ...], hints: str) -> str:
    """Return a configuration with comments. Each remark is a comment above the agent."""
    comments = "".join(f"# {clean(remark)}\n" for remark in remarks)
    settings = yaml.safe_dump({"agent": dict(agent)}, sort_keys=False, allow_unicode=True, width=1000)
    return f"{_HEAD}{comments}{settings}{hints}{_REST}"


def _without_variables(value: Any) -> Any:
    """Escape `${VAR}` in a value: a server's description must not read the environment."""
    if isinstance(value, Mapping):
        return {key: _without_variables(each) for key, each in value.items()}
    return value.replace("${", "$${") if isinstance(value, str) else value


def _yaml_scalar(text: str) -> str:
    return yaml.safe_dump(text, width=1000).splitlines()[0]
