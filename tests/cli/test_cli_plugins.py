"""`agentest plugins`, the key `plugins`, and plug-in commands, from projects and installed packages."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from project import Project

from agentest.testing import ScriptedAgent

SUGGESTS = tuple(map(int, version("click").split(".")[:2])) >= (8, 4)
"""True if this version of click suggests commands."""
COMMAND = """
import click

@click.command()
@click.option("--config")
@click.option("--cwd")
def hello(config, cwd):
    \"\"\"Say hello.\"\"\"
    click.echo("hello")
"""

TYPE = """
from typing import Literal

from agentest.config.agents.base import AnyAgent
from agentest.domain.tool_visibility import ToolVisibility
from agentest.plugin import Plugin


class Settings(AnyAgent):
    type: Literal["mine"]
    word: str
    address = property(lambda self: "here")
    natural_visibility = property(lambda self: ToolVisibility.UNSEEN)
    secrets = property(lambda self: [])


plugin = Plugin("mine")
plugin.agent_type("mine", settings="my_type:Settings", client="my_type:open_agent", help="Mine.")
"""


def plugin_module(*features: str, name: str = "mine") -> str:
    return "\n".join(["from agentest.plugin import Plugin", f"plugin = Plugin({name!r})", *features, ""])


def install(folder: Path, module: str, text: str) -> dict[str, str]:
    """Install a package with an entry point; returns the environment that finds it."""
    (folder / f"{module}.py").write_text(text)
    info = folder / f"{module}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[agentest.plugins]\n{module} = {module}\n")
    return {"PYTHONPATH": str(folder)}


@pytest.fixture
def configured(project: Project) -> Project:
    """A project whose plug-in, in the last line of its configuration, has a command."""
    project.config("http://localhost:1/v1", plugins=["my_plugin"])
    project.write("hello.py", COMMAND)
    project.write("my_plugin.py", plugin_module('plugin.command("hello", "hello:hello", help="Say hello.")'))
    return project


def test_plugins_are_listed_with_what_they_add(configured: Project) -> None:
    """Each plug-in has its source and the names it registers, by kind."""
    done = configured.agentest("plugins")
    assert (done.returncode, done.stderr) == (0, "")
    rows = done.stdout.splitlines()
    assert rows[0] == "core (core)"
    assert "  engine                local, workers" in rows
    assert rows[-2:] == ["mine (configuration)", "  command               hello"]
    assert all(len(row) <= 100 for row in rows)


def test_plugins_are_listed_as_json(configured: Project) -> None:
    """Each feature has the line that registers it."""
    listed = json.loads(configured.agentest("plugins", "--json").stdout)
    assert [each["from"] for each in listed] == ["core", *["built in"] * (len(listed) - 2), "configuration"]
    place = str(configured.root / "my_plugin.py") + ":3"
    hello = {"name": "hello", "path": "hello:hello", "place": place}
    assert listed[-1] == {
        "name": "mine",
        "from": "configuration",
        "requires": "",
        "adds": {"command": [hello]},
    }


def test_a_project_has_commands(configured: Project) -> None:
    """A command of the project's plug-in is run, listed and suggested."""
    assert configured.agentest("hello").stdout == "hello\n"
    assert re.search(r"  hello +Say hello\.\n", configured.agentest("--help").stdout)
    suggestion = "Did you mean 'hello'?" if SUGGESTS else "No such command 'helo'."
    assert suggestion in configured.agentest("helo").stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero ({file}:1)"),
        (None, "ModuleNotFoundError: No module named 'my_plugin'"),
        ("plugin = 5", "`plugin` is not an agentest.plugin.Plugin"),
        ("", "AttributeError: module 'my_plugin' has no attribute 'plugin'"),
    ],
)
def test_a_broken_plugin_of_a_project_ends_the_run(configured: Project, text: str | None, why: str) -> None:
    """The error has file, line, key and module; `agentest plugins` shows it and lists the others."""
    file = configured.root / "my_plugin.py"
    file.unlink()
    if text is not None:
        file.write_text(text)
    ran = configured.run()
    assert ran.returncode == 2
    assert f"{configured.root / 'agentest.config.yaml'}:4: plugins[0]: plug-in 'my_plugin'" in ran.stderr
    assert why.format(file=file) in ran.stderr
    listed = configured.agentest("plugins")
    assert listed.returncode == 2
    assert "plugins[0]: plug-in 'my_plugin'" in listed.stderr
    assert "core (core)" in listed.stdout


def test_a_duplicate_name_is_reported(configured: Project) -> None:
    """The first plug-in keeps the name; the message has both, with file and line."""
    configured.write("my_plugin.py", plugin_module('plugin.engine("workers", "a:b", help="Mine.")'))
    done = configured.agentest("plugins")
    assert done.returncode == 2
    assert f"plug-in 'mine' (configuration; {configured.root / 'my_plugin.py'}:3)" in done.stderr
    assert "hands in the engine 'workers', which plug-in 'core' has already" in done.stderr


def test_plugins_in_a_python_configuration(project: Project) -> None:
    """An agent in agentest.config.py may have a type of a plug-in that the file names."""
    project.write("my_type.py", TYPE)
    project.write(
        "agentest.config.py",
        "from agentest import define_config\n"
        "config = define_config(plugins=['my_type'], agent={'type': 'mine', 'word': 'x'})\n",
    )
    project.write(
        "a.sim.py",
        "from agentest import scenario\nscenario('one', turns=['hi'], expect={'never_says': 'Traceback'})\n",
    )
    assert project.run("--list").returncode == 0
    project.write("agentest.config.py", "config = {'plugins': ['my_type'], 'agent': {'type': 'mine'}}\n")
    assert "agent.word: the key is missing" in project.run("--list").stderr


def test_installed_packages_are_found(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A package's entry point is listed with its version, and its command is called."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "hello.py").write_text(COMMAND)
    text = plugin_module('plugin.command("hello", "hello:hello", help="Say hello.")', name="package")
    found = install(folder, "some_package", text)
    assert "package (some_package 1.5)" in project.agentest("plugins", env=found).stdout
    assert project.agentest("hello", env=found).stdout == "hello\n"


def test_a_broken_package_leaves_the_others(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Help and listing show the error; commands of the core read no installed package."""
    folder = tmp_path_factory.mktemp("site")
    found = install(folder, "broken", "import nothing_of_that_name")
    problem = "plug-in 'broken' (broken 1.5) cannot be loaded: ModuleNotFoundError: No module named "
    told = project.agentest("--help", env=found)
    assert problem in told.stderr
    assert f"({folder / 'broken.py'}:1)" in told.stderr
    assert "  compare " in told.stdout
    assert project.agentest("plugins", env=found).returncode == 2
    project.config("http://localhost:1/v1")
    project.scenario("scenario('one', turns=['hi'], expect={'never_says': 'Traceback'})")
    assert project.run("--list", env=found).stderr == ""


SPREAD = """
from contextlib import contextmanager

from agentest.domain.events import RunFinished
from agentest.runner.engines import EngineProvider
from agentest.runner.executor import LocalEngine
from agentest.support.errors import UsageError


class Provider(EngineProvider):
    def check(self, options):
        if options.workers == 3:
            raise UsageError("--engine mine has two workers")

    @contextmanager
    def open(self, prepared, recipe, *, earlier):
        print("opened", flush=True)
        yield LocalEngine()
        print("closed", flush=True)


class Notes:
    name = "notes"
    events = (RunFinished,)
    prints_outcome = False

    def __init__(self, path, others):
        self.path, self.others = path, others

    def on_event(self, event):
        self.path.write_text(f"{len(event.result.scenarios)} of {', '.join(self.others)}")


def make_reporter(context, path):
    return Notes(path, context.other_files)
"""


@pytest.fixture
def spreading(project: Project) -> Project:
    """A project whose plug-in has an engine, and a reporter that writes a file."""
    project.write("mine.py", SPREAD)
    project.write(
        "my_plugin.py",
        plugin_module(
            'plugin.engine("mine", "mine:Provider", help="Mine.")',
            'plugin.reporter("notes", "mine:make_reporter", help="Mine.", file="notes.txt")',
        ),
    )
    project.write("agent.py", "async def reply(messages, ctx):\n    return 'fine'\n")
    agent = {"type": "custom", "name": "h", "handler": "agent:reply"}
    project.write("agentest.config.yaml", json.dumps({"plugins": ["my_plugin"], "agent": agent}))
    project.scenario("scenario('one', turns=['hi'], expect={'never_says': 'Traceback'})")
    return project


def test_a_project_has_an_engine(spreading: Project) -> None:
    """It is selected by name, open during the run, and refuses options."""
    done = spreading.run("--engine", "mine", "--reporter", "json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "opened\nclosed\n"
    refused = spreading.run("--engine", "mine", "--workers", "3", "--list")
    assert (refused.returncode, refused.stderr) == (2, "agentest: --engine mine has two workers\n")
    unknown = spreading.run("--engine", "mime")
    assert re.search(r"'mime' is not one of 'local', 'workers',.* 'mine'\.", unknown.stderr)


@pytest.mark.parametrize("config", ["--config=place/agentest.config.yaml", "--cwd=place"])
def test_the_command_line_names_the_configuration(spreading: Project, config: str) -> None:
    """Its plug-ins are read before names are looked up: of engines, of commands, and for the help."""
    place = spreading.root / "place"
    place.mkdir()
    for each in ("agentest.config.yaml", "my_plugin.py", "mine.py", "agent.py", "a.sim.py"):
        (spreading.root / each).rename(place / each)
    (place / "hello.py").write_text(COMMAND)
    with (place / "my_plugin.py").open("a") as file:
        file.write('plugin.command("hello", "hello:hello", help="Say hello.")')
    words = config.split("=")
    done = spreading.run("--engine", "mine", *words, "--reporter", "json")
    assert (done.returncode, done.stdout) == (0, "opened\nclosed\n"), done.stderr
    assert spreading.agentest("hello", config).stdout == "hello\n"
    assert "|mine]" in spreading.run(config, "--help").stdout
    assert "'mine' is not one of" in spreading.run("--engine", "mine").stderr


def test_a_project_has_a_reporter(spreading: Project) -> None:
    """Its file is in the run's folder and in `output_dir`, and listed like other reports."""
    done = spreading.run("--reporter", "notes", "--reporter", "junit")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "agentest: passed: 1 passed; .agentest/notes.txt, .agentest/junit.xml\n"
    (run,) = (spreading.root / ".agentest" / "runs").iterdir()
    fixed = spreading.root / ".agentest" / "notes.txt"
    paths = f".agentest/runs/{run.name}/junit.xml, .agentest/runs/{run.name}/results.json"
    assert fixed.read_text() == (run / "notes.txt").read_text() == f"1 of {paths}"
    judged = spreading.agentest("judge", "latest", "--reporter", "notes")
    assert judged.returncode == 0, judged.stderr
    assert (spreading.root / ".agentest" / "judged-notes.txt").read_text().startswith("1 of ")
    shown = spreading.agentest(
        "show", "--reporter", "notes=seen.txt", env={"PYTHONPATH": str(spreading.root)}
    )
    assert shown.returncode == 0, shown.stderr
    misspelled = spreading.run("--reporter", "note")
    assert "--reporter: there is no reporter 'note'; did you mean `notes`?" in misspelled.stderr


RAISES = """
import click
from agentest.cli.options import exits
from agentest.runner.engines import EngineProvider

@click.command()
def broken():
    \"\"\"Break.\"\"\"
    {}["nothing"]

@click.command()
@exits
def careful():
    \"\"\"Break in the way of our commands.\"\"\"
    int("nothing")

class Provider(EngineProvider):
    def open(self, prepared, recipe, *, earlier):
        raise RuntimeError("no cluster")
"""


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["broken"], "KeyError: 'nothing'"),
        (["careful"], "ValueError: invalid literal"),
        (["run", "--engine", "far"], "RuntimeError: no cluster"),
    ],
)
def test_an_unexpected_error_of_a_plugin_names_it(spreading: Project, words: list[str], problem: str) -> None:
    """Users report it to its authors, and not to Agentest's."""
    spreading.write("raises.py", RAISES)
    features = [
        *(f'plugin.command("{name}", "raises:{name}", help="Break.")' for name in ("broken", "careful")),
        'plugin.engine("far", "raises:Provider", help="Far.")',
    ]
    spreading.write("my_plugin.py", plugin_module(*features, name="breaks"))
    done = spreading.agentest(*words)
    assert done.returncode == 2
    rows = done.stderr.strip().splitlines()
    assert rows[0].startswith(f"agentest: an unexpected error ended the program: {problem}")
    assert rows[-1] == "This is a mistake of the plug-in 'breaks' (configuration): please report it."


def test_an_unexpected_error_elsewhere_does_not_name_a_plugin(spreading: Project) -> None:
    """The user's own module is no plug-in's, though a plug-in is loaded."""
    spreading.write(
        "agentest.config.py",
        "class Breaks(dict):\n"
        "    def __iter__(self): raise RuntimeError('odd')\n"
        "    keys = items = __iter__\n"
        "config = {'plugins': ['my_plugin'], 'agent': Breaks(type='custom')}\n",
    )
    (spreading.root / "agentest.config.yaml").unlink()
    done = spreading.run()
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("This is a mistake of Agentest "), done.stderr


def test_the_help_names_what_is_there(spreading: Project) -> None:
    """Reporters and engines of plug-ins are in the help of `run`."""
    told = " ".join(spreading.run("--help").stdout.split())
    assert re.search(r"\[local\|workers\|(ray\|)?mine\]", told)  # the core alone has no Ray
    assert re.search(
        "Report as console, agent, json, github-actions, junit, (html, )?notes, to PATH if given.", told
    )


LOG = """
from contextlib import asynccontextmanager

from agentest.conversation.turn_progress import CallSource
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.runner.call_sources import CallSources


class OneCall(CallSource):
    def __init__(self, mocks):
        self.mocks = mocks

    async def complete(self, turn):
        call = ToolCall(name="look_up", args={}, result="found", mocked=False, turn_index=turn.turn_index,
                        seen_by=SeenBy.AGENT)
        self.mocks.observe([call])


class Log(CallSources):
    @asynccontextmanager
    async def conversation(self, live):
        yield [OneCall(live.mocks)]


async def open_log(resources):
    return Log()
"""


@pytest.mark.parametrize("key", ["call_sources", "callSources"])
def test_a_configuration_names_call_sources(project: Project, key: str) -> None:
    """An agent of any type gets the calls of a plug-in's source; one that nobody has is an error."""
    project.write("log.py", LOG)
    project.write("my_plugin.py", plugin_module('plugin.call_source("log", "log:open_log")'))
    more = {"plugins": ["my_plugin"]}
    visible = {"tool_visibility": "reported"}
    project.scenario("scenario('one', turns=['hi'], trajectory={'expected': ['look_up']})")
    with ScriptedAgent(["Found."]) as agent:
        settings = {"type": "http", "endpoint": agent.endpoint, "body": {"text": "{{message}}"}, **visible}
        settings["reply"] = "choices[0].message.content"
        project.write("agentest.config.yaml", json.dumps({"agent": {**settings, key: ["log"]}, **more}))
        done = project.run("--reporter", "json")
        assert done.returncode == 0, done.stderr
        (call,) = project.scenario_result("one")["conversations"][0]["turns"][0]["toolCalls"]
        assert (call["name"], call["seenBy"]) == ("look_up", "agent")
        project.write("agentest.config.yaml", json.dumps({"agent": {**settings, key: ["lok"]}, **more}))
        refused = project.run("--list").stderr
        assert "agent.call_sources[0]: there is no call source 'lok'; did you mean `log`?" in refused
