"""Every code block in the documentation is run, or checked in its language."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml

import agentest
from agentest.cli.main import cli
from agentest.config.config import Config
from agentest.config.file import load
from agentest.plugin import PLUGINS, Plugin
from agentest.plugins.adk.formats.criteria import parse_criteria
from agentest.plugins.adk.formats.set_reader import read_eval_set
from agentest.scenarios.definition import collect_scenarios
from agentest.scenarios.discovery import discover
from agentest.testing import ScriptedModel

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "agentest" / "plugins" / "authoring" / "skill").rglob("*.md")),
]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")
_LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]+)?\)")


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what docs/plugins.md builds be installed: the example, and the module of a project."""
    house_rules = Plugin("house rules")
    house_rules.metric("form_of_address", "house_rules:FormOfAddress")
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "plugin"))
    monkeypatch.setitem(sys.modules, "house_rules", SimpleNamespace(plugin=house_rules))
    monkeypatch.setattr(PLUGINS, "_features", {kind: {**each} for kind, each in PLUGINS._features.items()})
    for name in ("plugins", "_modules", "_unread"):
        monkeypatch.setattr(PLUGINS, name, getattr(PLUGINS, name).copy())
    PLUGINS.add("acme_agentest.plugin", "examples/plugin")


def blocks(*languages: str) -> list[Any]:
    return list(_blocks(*languages))


def _blocks(*languages: str) -> Iterator[Any]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            if match[1] in languages:
                line = text[: match.start()].count("\n") + 2
                yield pytest.param(match[2], id=f"{page.name}:{line}")


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code: str) -> None:
    """A Python block runs unchanged; the scenarios and configurations in it are valid."""
    names: dict[str, Any] = {"__name__": "documentation"}
    with collect_scenarios():
        exec(compile(code, "<documentation>", "exec", dont_inherit=True), names)
    if "config" in names:
        Config.model_validate(names["config"])


_EXAMPLE = re.compile(r"\n\n((?: {4}.+\n)+)")
FIRST_READ = [
    *("scenario", "call", "sequence", "define_config"),
    *("Runner", "SimulatedUser", "MockResolver", "TrajectoryMatcher"),
]


@pytest.mark.parametrize("name", FIRST_READ)
def test_docstrings_that_people_read_first_show_a_call(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example runs, with the public names and with what it takes for granted."""
    value = getattr(agentest, name)
    example = _EXAMPLE.search(f"{inspect.getdoc(value)}\n")
    assert example, f"{name} has no example"
    assert f"{name}(" in example[1] or f"{name}." in example[1]
    monkeypatch.chdir(tmp_path)
    Path("agentest.config.yaml").write_text("agent: {type: custom, handler: first_read:reply}\n")
    Path("first_read.py").write_text("def reply(messages, ctx):\n    return 'Hello.'\n")
    first, second = (
        agentest.scenario(name, turns=["Hi"], expect={"says": "Hello"}) for name in ("first", "second")
    )
    refund = agentest.ToolCall("refund", {"order": 17}, None, True, 0)
    conversation = SimpleNamespace(tool_calls=[refund, replace(refund, name="get_order")])
    names = {public: getattr(agentest, public) for public in agentest.__all__}
    names |= {"ScriptedModel": ScriptedModel, "books_a_haircut": first, "conversation": conversation}
    code = compile(textwrap.dedent(example[1]), name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(code, names | {"first": first, "second": second})
    if running:
        asyncio.run(running)


@pytest.mark.slow
def test_python_blocks_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that users copy passes mypy in strict mode."""
    from mypy import api as mypy  # in the groups lint and dev

    files = []
    for number, block in enumerate(blocks("python")):
        files.append(tmp_path / f"block_{number}.py")
        files[-1].write_text(f"# {block.id}\n{block.values[0]}", encoding="utf-8")
    monkeypatch.chdir(ROOT)  # where mypy's configuration and what it remembers of earlier runs are
    limit = sys.getrecursionlimit()
    out, err, status = mypy.run(["--no-error-summary", *map(str, files)])
    sys.setrecursionlimit(limit)  # mypy raises it, and later tests meet the limit that users have
    assert status == 0, out + err


SECRETS = dict.fromkeys(("SLACK_BOT_TOKEN", "WHATSAPP_TOKEN", "REPLY_SECRET"), "of-the-test")
"""Secrets that calls present have no default in the examples, because a stranger would know it."""


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_blocks_are_files(text: str, tmp_path: Path) -> None:
    """A block with an `agent` is a valid configuration, one with `scenarios` a scenario file."""
    if "scenarios" in yaml.safe_load(text):
        (tmp_path / "a.sim.yaml").write_text(text, encoding="utf-8")
        assert discover(tmp_path, ["*.sim.yaml"], []).problems == []
    if "agent" in yaml.safe_load(text):
        path = tmp_path / "agentest.config.yaml"
        path.write_text(text, encoding="utf-8")
        load(path, SECRETS)


@pytest.mark.parametrize("text", blocks("json"))
def test_json_blocks_are_evaluation_files(text: str, tmp_path: Path) -> None:
    """A JSON block is an evaluation set, in either spelling, scenarios for one, or a criteria file."""
    document = json.loads(text)
    if document.keys() & {"eval_set_id", "evalSetId", "scenarios"}:
        path = tmp_path / "a.test.json"
        path.write_text(text, encoding="utf-8")
        assert read_eval_set(path).eval_set.eval_cases
    else:
        assert parse_criteria(document, "documentation").criteria


@pytest.mark.parametrize("text", blocks("toml"))
def test_toml_blocks_are_packages(text: str) -> None:
    """A TOML block describes a package whose plug-in is loaded by an entry point."""
    document = tomllib.loads(text)
    assert document["project"]["entry-points"]["agentest.plugins"]


@pytest.mark.parametrize("text", blocks("console"))
def test_commands_exist(text: str) -> None:
    """Every documented `agentest …` command can be parsed."""
    for line in text.strip().splitlines():
        for part in line.split("&&"):
            words = [word for word in shlex.split(part) if not _VARIABLE.match(word)]
            if words and words[0].endswith("agentest"):
                parse(cli, "agentest", words[1:])


def parse(command: click.Command, name: str, words: list[str], parent: click.Context | None = None) -> None:
    """Parse the words of a command, and of the command of a group."""
    context = command.make_context(name, list(words), parent=parent)
    if isinstance(command, click.Group):
        of_group, chosen, rest = command.resolve_command(context, words)
        assert chosen is not None
        parse(chosen, str(of_group), rest, context)


def test_blocks_have_a_language_that_is_checked() -> None:
    """No block escapes the checks by naming another language, or none."""
    known = {"python", "yaml", "json", "toml", "console", "text"}
    found = {match[1] for page in PAGES for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))}
    assert found <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link leads to a file of the repository, and to a heading that is there."""
    for target, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            path = page.parent / target if target else page
            assert path.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(path), f"{page.name} links to {target}{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes for the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {"#" + re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_option_of_run_is_documented() -> None:
    """The documentation has every option of `agentest run --help`."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    run = cli.commands["run"]
    for option in run.params:
        if isinstance(option, click.Option):
            assert any(
                name in text or name in (ROOT / "docs" / "models.md").read_text() for name in option.opts
            )


def test_every_key_of_the_configuration_is_documented() -> None:
    """The table of the configuration names every key."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for key in Config.model_fields:
        assert f"`{key}`" in text, key


def test_the_map_names_existing_files() -> None:
    """Every file and folder in ARCHITECTURE.md exists; NAME is a placeholder."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:agentest|tests|docs)/[\w./-]+|\w+\.md)`", text):
        assert "NAME" in name or (ROOT / name).exists(), name
    for room in re.findall(r"^(\w+)(/?)  ", text, re.M):
        assert (ROOT / "agentest" / room[0]).is_dir() if room[1] else "".join(room), room
