"""Routes for runs: the list, the parts of each run, and comparisons. Files are read in threads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from agentest.cli.comparison import read_run
from agentest.history.compared_runs import MeasuredRun, part_of_agent
from agentest.history.comparison import compare_measured_runs
from agentest.plugins.page.report import comparison_for_page, copyable_scripts
from agentest.plugins.page.server.json_routes import (
    UI,
    Values,
    WebProject,
    call_with_imports,
    json_route,
    optional_text,
)
from agentest.plugins.page.server.run_index import CHOSEN, WebRuns
from agentest.plugins.page.talk import saved_conversation as saved
from agentest.plugins.page.viewer.overview import brief
from agentest.report.agent import rerun
from agentest.runner.prepare import RunRequest
from agentest.store.runs.folder import LATEST, RunRecord, StoredRunFolder, list_stored_runs, read_record
from agentest.store.spans import spans_of
from agentest.support.errors import UsageError
from agentest.support.files import shown_path
from agentest.support.function_threads import in_thread
from agentest.support.json_text import Json, encoded
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import CredentialFilter

RUNS: web.AppKey[WebRuns] = web.AppKey("runs", WebRuns)


def add_runs(app: web.Application) -> None:
    """Add the routes, and close the runs when the server shuts down."""
    app[RUNS] = WebRuns(app[UI])
    app.add_routes(
        (
            json_route("GET", "/api/runs", lambda request, _: request.app[RUNS].listed()),
            json_route("GET", "/api/runs/{run}", lambda r, _: r.app[RUNS].overview(r.match_info["run"])),
            json_route("GET", "/api/runs/{run}/scenario", _scenario),
            json_route("GET", "/api/runs/{run}/conversation", _conversation),
            json_route("GET", "/api/runs/{run}/search", _search),
            json_route("POST", "/api/runs/{run}/save", _save),
            json_route("GET", "/api/compare", _compare),
        )
    )
    app.on_shutdown.append(_close)


async def _close(app: web.Application) -> None:
    app[RUNS].close()


def _scenario_key(request: web.Request) -> tuple[str, str, str]:
    query = request.query
    return request.match_info["run"], query.get("name", ""), query.get("agent", "")


def _hidden(request: web.Request, content: Json) -> Json:
    hide = CredentialFilter()
    if request.query.get("credentials") != "shown":
        content = hide(content, keep=_scenario_key(request)[1:])
    return {**content, "hidden": hide.note}


def _scenario(request: web.Request, _: Values) -> Json:
    index, indexed, content = request.app[RUNS].scenario(*_scenario_key(request))[1:]
    rows = list(map(brief, index.conversations((indexed.name, indexed.agent))))
    with index.lock:
        several = len({agent for _, agent in index.scenarios}) > 1
    return _hidden(request, {"scenario": content, "conversations": rows, "command": rerun(content, several)})


def _conversation(request: web.Request, values: Values) -> Json:
    run, scenario, agent = _scenario_key(request)
    requested, stored = request.app[RUNS].conversation(run, scenario, agent, values.get("id", ""))
    # What is shown next to a conversation: a scripted scenario that repeats it, and its spans.
    spans = spans_of(requested.folder, scenario, agent, stored["conversationId"]) if requested.folder else []
    scripts = copyable_scripts(scenario, stored, len(encoded(stored)))
    return _hidden(request, {"conversation": stored, **scripts, "spans": spans})


def _search(request: web.Request, values: Values) -> Json:
    def gone() -> bool:
        return request.transport is None or request.transport.is_closing()

    return request.app[RUNS].search(request.match_info["run"], values.get("text", ""), gone)


async def save_conversation(request: web.Request, body: Values, talk: saved.ConversationToSave) -> Json:
    """Return what saving a conversation would write, or write it if the body sets `write`.

    The body contains `as`, `name` and `path`. To write, it also needs the `version` of the file that the
    user saw, so that a changed file is not overwritten.
    """
    kind, project = body.get("as"), request.app[UI]
    if kind not in saved.KINDS:
        raise UsageError(f"`as`: expected one of {', '.join(saved.KINDS)}")
    target = {key: optional_text(body, key) or "" for key in ("path", "name")}
    arguments = talk, saved.SaveRequest(kind=kind, **target), RunRequest(project.root, project.config)
    planned = await call_with_imports(request.app, saved.prepare_file, *arguments)
    written = body.get("write") is True
    if written:
        await in_thread(saved.write, planned, optional_text(body, "version"))
    return {
        "path": shown_path(planned.path, project.root.resolve()),
        "text": planned.preview,
        "notes": list(planned.notes),
        "version": planned.version,
        "written": written,
    }


async def _save(request: web.Request, values: Values) -> Json:
    return await save_conversation(request, values, await in_thread(_talk, request))


def _talk(request: web.Request) -> saved.ConversationToSave:
    runs, key = request.app[RUNS], _scenario_key(request)
    _, index, _, scenario = runs.scenario(*key)
    _, conversation = runs.conversation(*key, request.query.get("id", ""))
    began = datetime.fromisoformat(index.run.started_at).timestamp() if index.run else 0.0
    return saved.conversation_to_save(scenario, key[2], CredentialFilter()(conversation), began)


def _compare(request: web.Request, values: Values) -> Json:
    sides = {key: values.get(key, "") for key in ("of", "base", "new")}
    return comparison_response(request.app[UI], **sides)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComparableRun:
    id: str
    file: Path
    record: RunRecord | None

    def side(self, agent: str | None = None) -> _Side:
        try:
            status = self.file.stat()
        except OSError:
            raise UsageError(f"the run {self.id} is no longer stored: choose another") from None
        return _Side(self.file, self.id, (status.st_mtime_ns, status.st_size), agent)


class _Side(NamedTuple):
    """One side of a comparison; `agent` limits it to one agent, None means all agents."""

    file: Path
    label: str
    written: tuple[int, int]
    agent: str | None

    @property
    def measured(self) -> MeasuredRun:
        run = _measured(self.file, self.label, self.written)
        return part_of_agent(run, self.agent) if self.agent is not None else run


def comparison_response(project: WebProject, *, of: str, base: str, new: str) -> Json:
    """Return the available runs and agents, the selected ones, and their comparison.

    Args:
        of: run whose agents can be compared; "" for the latest.
        base, new: two agents of that run, or two runs; "" for its first two agents, or else for this run and
            the one before it.

    If the comparison fails, `problem` contains the reason.
    """
    runs = _runs(project)
    content: Json = {
        "choices": _choices(runs, ()),
        "of": "",
        "agents": [],
        "base": base,
        "new": new,
        "between": "runs",
        "comparison": None,
        "problem": "",
    }
    try:
        _compare_into(content, runs, of, base, new)
    except UsageError as error:
        content["problem"] = str(error)
    return content


def _compare_into(content: Json, runs: Sequence[_ComparableRun], run_id: str, base: str, new: str) -> None:
    selected = _find_run(runs, run_id or (new if any(run.id == new for run in runs) else LATEST))
    agents = selected.side().measured.agents
    if not (base or new) and len(agents) > 1:
        base, new = agents[:2]
    base, new = _sides_or_defaults(runs, selected, agents, base, new)
    of_agents = base in agents and new in agents
    between = "agents" if of_agents else "runs"
    content |= {"of": selected.id, "agents": list(agents), "base": base, "new": new, "between": between}
    offered = [run for run in runs if _is_comparable(run, selected) or run.id in (base, new)]
    content["choices"] = _choices(offered, agents if len(agents) > 1 else ())
    if base == new:
        raise UsageError("both are the same: choose two that differ")
    sides = [selected.side(name) if of_agents else _find_run(runs, name).side() for name in (base, new)]
    content["comparison"] = _comparison(sides[0], sides[1], between)


def _sides_or_defaults(
    runs: Sequence[_ComparableRun], selected: _ComparableRun, agents: Sequence[str], base: str, new: str
) -> tuple[str, str]:
    if base in agents or new in agents:
        return base or _first_other(agents, new), new or _first_other(agents, base)
    new = new or selected.id
    named = next((run for run in runs if run.id == new), selected)
    # By default, runs of the same kind and size are compared.
    by_likeness = sorted(runs, key=lambda run: (not _is_comparable(run, named), _kind(run) != _kind(named)))
    earlier = [run.id for run in by_likeness if run.id < new]
    return base or (earlier[0] if earlier else _first_other([run.id for run in runs], new)), new


def _kind(run: _ComparableRun) -> object:
    record = run.record
    return (record.kind, record.scenarios, record.partial) if record else object()


def _is_comparable(run: _ComparableRun, selected: _ComparableRun) -> bool:
    if run.record is None or selected.record is None:
        return True
    mine, its = ({each.scenario for each in record.took} for record in (run.record, selected.record))
    return run.record.kind is selected.record.kind and not (mine and its and mine.isdisjoint(its))


def _first_other(names: Sequence[str], name: str) -> str:
    return next((each for each in names if each != name), "")


def _find_run(runs: Sequence[_ComparableRun], name: str) -> _ComparableRun:
    if not runs:
        raise UsageError("no run is stored yet: start one, here or with agentest run")
    if name == LATEST:
        return runs[0]
    for run in runs:
        if run.id == name:
            return run
    if not name:
        raise UsageError("only one run is stored, and a comparison needs two: run again")
    raise UsageError(f"{name[:80]!r} is neither a stored run nor an agent of this one: choose another")


def _runs(project: WebProject) -> list[_ComparableRun]:
    stored = [
        _ComparableRun(id=run.id, file=run.file, record=run.record)
        for run in reversed(list_stored_runs(project.output_dir))
        if run.file
    ]
    path = project.chosen
    if path and all(run.file.parent.resolve() != path.parent.resolve() for run in stored):
        return [*stored, _ComparableRun(id=CHOSEN, file=path, record=read_record(path.parent))]
    return stored


def _choices(runs: Sequence[_ComparableRun], agents: Sequence[str]) -> Json:
    every = [*((name, f"agent {name}") for name in agents), *((run.id, _label(run)) for run in runs)]
    return {"base": every, "new": every}


def _label(run: _ComparableRun) -> str:
    record = run.record
    if record is None:
        return run.id
    state = StoredRunFolder(run.file.parent).state_of(record)
    begun = f"{record.started_at[:16].replace('T', ' ')} UTC"
    commit = record.commit[:7] if record.commit else ""
    return " · ".join(filter(None, [begun, state, commit, run.id]))


@lru_cache(maxsize=4)
def _comparison(base: _Side, new: _Side, between: str) -> Json:
    """Cached, because the page requests it for every transcript that it opens."""
    compared = CredentialFilter()(compare_measured_runs(base.measured, new.measured))
    return comparison_for_page(compared, between)


@lru_cache(maxsize=4)
def _measured(file: Path, label: str, _: tuple[int, int]) -> MeasuredRun:
    """Measure a run; `written` is part of the cache key, so that a changed file is read again."""
    return read_run(file, label)
