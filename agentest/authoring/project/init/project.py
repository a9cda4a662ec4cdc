"""What `agentest init` does: which files a project needs, and which of them are to be written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Literal

from agentest.authoring.project.init import texts
from agentest.authoring.project.init.endpoint import Described, described
from agentest.authoring.project.init.files import Deed, Filed, ignore, make_folder, write_new
from agentest.authoring.project.init.ports import port_for
from agentest.config.config import Config
from agentest.config.file import NAMES
from agentest.scenarios.discovery import search
from agentest.support.errors import UsageError
from agentest.support.paths import path_from

CiName = Literal["github", "gitlab"]
CONFIG = "agentest.config.yaml"
DEMO_AGENT = "demo_agent.py"
FIRST = "scenarios/first.sim.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be written."""

    folder: Path
    endpoint: str | None = None
    demo: bool = False
    ci: CiName | None = None


class Step(Enum):
    """What the user does next."""

    WRITE = "write what `agent` is"
    LOOK = "look whether a configuration that was there is well"
    RUN = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What became of it."""

    files: tuple[Filed, ...]
    notes: tuple[str, ...] = ()
    """What the user should know, each in a sentence."""
    step: Step = Step.RUN
    is_known: bool = True
    """Whether what answers at the endpoint was recognised."""


def begin(wish: Wish) -> Begun:
    """Write what is missing. Raises UsageError, and then nothing has been written, or what it says."""
    if wish.demo and wish.endpoint:
        raise UsageError("--demo and --endpoint exclude each other: the demo brings an agent of its own")
    folder = wish.folder.absolute()
    there = next((folder / name for name in NAMES if (folder / name).exists()), None)
    if wish.demo:
        _check_demo(there)
    agent = described(wish.endpoint) if wish.endpoint else None
    make_folder(folder)
    files = (*_project(wish, folder, there, agent), ignore(folder), *_ci(wish.ci, folder))
    return Begun(
        files=files,
        notes=tuple(_notes(wish, there, agent, files)),
        step=_step(wish, there, agent),
        is_known=agent is None or agent.is_known,
    )


def _step(wish: Wish, there: Path | None, agent: Described | None) -> Step:
    if agent:
        return Step.RUN if agent.is_complete and not there else Step.WRITE
    if there and not wish.demo:
        return Step.LOOK
    return Step.RUN if wish.demo else Step.WRITE


def _check_demo(there: Path | None) -> None:
    """Raise UsageError where the demo's scenarios would run against an agent of the user's."""
    if there and DEMO_AGENT not in there.read_text(encoding="utf-8", errors="replace"):
        raise UsageError(
            f"{there} is there already, and the demo has a configuration of its own: name another folder, "
            "like agentest init demo --demo"
        )


def _project(wish: Wish, folder: Path, there: Path | None, agent: Described | None) -> Iterator[Filed]:
    if there:
        yield Filed(path=there, deed=Deed.STAYS, about="it was there")
    else:
        yield write_new(folder / CONFIG, _config(wish, folder, agent), _about_config(wish, agent))
    if wish.demo:
        yield write_new(folder / DEMO_AGENT, texts.template(DEMO_AGENT), "a small agent, to try things on")
    scenario = next(iter(_scenarios(folder)), None)
    if scenario and scenario != folder / FIRST:
        yield Filed(path=scenario, deed=Deed.STAYS, about="there are scenarios")
    else:
        text = texts.template("demo.sim.txt" if wish.demo else "first.sim.txt")
        yield write_new(folder / FIRST, text, "what users do, and what must happen")


def _scenarios(folder: Path) -> tuple[Path, ...]:
    defaults = Config.model_fields
    include, exclude = (
        defaults[key].get_default(call_default_factory=True) for key in ("include", "exclude")
    )
    return search(folder, include, exclude).files


def _config(wish: Wish, folder: Path, agent: Described | None) -> str:
    if wish.demo:
        return texts.demo_config(port_for(folder))
    return texts.found_config(agent.settings, agent.remarks) if agent else texts.placeholder_config()


def _about_config(wish: Wish, agent: Described | None) -> str:
    if wish.demo:
        return "the agent, and how it is started"
    return f"type: {agent.settings['type']}" if agent else "write your agent's address into it"


def _ci(ci: CiName | None, folder: Path) -> Iterator[Filed]:
    if ci is None:
        return
    root = _repository(folder)
    place = PurePosixPath(folder.relative_to(root).as_posix())
    if ci == "github":
        path, text = root / ".github/workflows/agentest.yml", texts.github_workflow(place)
    else:
        taken = (root / ".gitlab-ci.yml").exists() and not _is_ours(root / ".gitlab-ci.yml")
        path = root / (".gitlab/agentest.gitlab-ci.yml" if taken else ".gitlab-ci.yml")
        text = texts.gitlab_job(place)
    yield write_new(path, text, "runs the scenarios for every change")


def _is_ours(path: Path) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(
        "# Written by `agentest"
    )


def _repository(folder: Path) -> Path:
    """The root of the repository that a folder is in; the folder itself where it is in none."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)


def _notes(
    wish: Wish, there: Path | None, agent: Described | None, files: tuple[Filed, ...]
) -> Iterator[str]:
    from agentest.agents.probing import as_settings

    if agent:
        yield from agent.remarks
    if agent and there:
        yield f"For this agent, write in {there.name}: agent: {{{as_settings(agent.settings)}}}"
    included = next((f for f in files if f.path.parent.name == ".gitlab" and f.deed is Deed.WROTE), None)
    if included:
        path = path_from(_repository(wish.folder.absolute()), included.path)
        yield f"There is a .gitlab-ci.yml already: write in it\n  include:\n    - local: {path}"
