"""`agentest docs`: the pages that come with the package, in a terminal."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentest.cli.main import cli
from agentest.plugin import PLUGINS, Plugin
from agentest.plugins.authoring.commands.docs import Documentation

ROOT = Path(__file__).parents[3]


def docs(*words: str) -> Result:
    return CliRunner().invoke(cli, ["docs", *words], standalone_mode=False)


def test_every_page_has_a_topic_and_no_link_that_leads_nowhere() -> None:
    """In a pipe a page is Markdown, in which links to pages have become commands that print them."""
    documentation = Documentation()
    listed = docs().output
    for page in documentation.pages:
        assert documentation.find(page.topic) is page
        assert f"{page.topic} " in listed
        outside_code = re.sub(r"^```.*?^```$", "", documentation.text(page), flags=re.M | re.S)
        assert not re.search(r"\]\([^)\s]*\.(md|png)", outside_code), page.topic
        for topic in re.findall(r"\(agentest docs ([^)\s]+)\)", outside_code):
            documentation.find(topic)
    assert "Coding agents (agentest docs coding-agents)" in docs("reports").output
    assert "[" not in docs("reports").output.splitlines()[0]


def test_topics_are_found_as_people_write_them() -> None:
    """By name, path, title or an agent's type; a typo names the nearest topic."""
    page = docs("mock-servers").output
    assert page.startswith("# ")
    for words in (("mock", "servers"), ("docs/mock-servers.md",), ("Mock-Servers",)):
        assert docs(*words).output == page
    assert docs("agents/langgraph").output == docs("langgraph").output
    titles = {kind: docs(kind).output.partition("\n")[0] for kind in PLUGINS.all("agent type")}
    assert all(title.startswith("# ") for title in titles.values()), titles
    assert (titles["ai_sdk"], titles["chat_completions"]) == ("# Vercel AI SDK", "# Agents")
    typo = docs("veridct")
    assert typo.return_value == 2
    assert "did you mean `agentest docs verdict`?" in typo.stderr


def test_a_type_of_another_package_is_documented_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the address."""
    plugin = Plugin("parrots")
    plugin.agent_type("parrot", settings="", client="", help="a parrot", docs="https://parrots.example")
    monkeypatch.setitem(PLUGINS._features["agent type"], "parrot", plugin.features[0])
    assert "type 'parrot' of a plug-in is documented at https://parrots.example" in docs("parrot").stderr


def test_a_search_finds_sections() -> None:
    """An error message leads to the section that explains it."""
    found = docs("--search", "calls cannot be seen").output
    assert "agentest docs troubleshooting: " in found
    nothing = docs("--search", "zzz qqq")
    assert nothing.return_value == 2
    assert "use fewer words" in nothing.stderr


def test_keys_are_explained_by_the_tables() -> None:
    """The text of a key's row, without its links."""
    documentation = Documentation()
    assert documentation.key_meaning("max_turns").startswith("8; ")
    assert "](" not in documentation.key_meaning("thresholds")
    assert documentation.key_meaning("no_such_key") == ""


@pytest.mark.slow
def test_the_wheel_has_the_pages_and_the_skill(tmp_path: Path) -> None:
    """An installed package prints pages and writes the skill without a checkout."""
    pytest.importorskip("hatchling", reason="the group test has it")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    for words in (["docs", "verdict"], ["skill", "install", "--claude"]):
        command = [sys.executable, "-m", "agentest", *words]
        environ = {"PYTHONPATH": str(tmp_path / "installed"), "PATH": ""}
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / ".claude" / "skills" / "agentest" / "SKILL.md").is_file()
