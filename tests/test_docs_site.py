"""The documentation as a product: sizes and openings of pages, navigation, reference, recipes, messages."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import jmespath
import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SITE = DOCS / "site"
PAGES = sorted(DOCS.rglob("*.md"))
MOST_WORDS = 2_500
_CELL = re.compile(r"(?<!\\)\|")


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program that builds the site, without Zensical."""
    monkeypatch.syspath_prepend(str(SITE))
    import build

    yield build
    for name in ("build", "reference"):
        sys.modules.pop(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_are_short_and_open_with_their_use(page: Path) -> None:
    """Pages have a limited length, and start with a paragraph below the title."""
    text = page.read_text("utf-8")
    assert len(text.split()) <= MOST_WORDS
    title, _, opening = text.partition("\n\n")
    assert title.startswith("# ")
    assert re.match(r"\w", opening), "the page opens with something other than a sentence"


def test_every_page_is_in_the_navigation_once(build: Any) -> None:
    """Missing and deleted pages are found without building the site."""
    listed = list(
        build.pages_of(tomllib.loads((SITE / "zensical.toml").read_text("utf-8"))["project"]["nav"])
    )
    written = [page.relative_to(DOCS).as_posix() for page in PAGES]
    written += [f"project/{name}.md" for name in build.PROJECT.values()]
    assert sorted(listed) == sorted(written)


def test_the_site_has_every_key_command_and_name(build: Any, tmp_path: Path) -> None:
    """The reference is complete, and no link of the pages that are built leads out of the site."""
    import agentest
    from agentest.cli.main import cli
    from agentest.config.agent_types import settings_class
    from agentest.config.config import Config
    from agentest.plugin import PLUGINS

    build.write_pages(tmp_path)
    text = {page.stem: page.read_text("utf-8") for page in tmp_path.glob("reference-*.md")}
    assert all(f"| `{key}` |" in text["reference-configuration"] for key in Config.model_fields)
    agents = text["reference-agents"]
    for name in PLUGINS.all("agent type"):
        keys = [field.alias or key for key, field in settings_class(name).model_fields.items()]
        assert [key for key in keys if f"| `{key}` |" not in agents] == []
    commands = text["reference-cli"] + text["reference-cli-authoring"]
    assert [name for name in cli.commands if commands.count(f"## agentest {name}\n") != 1] == []
    assert all(f"### {name}\n" in text["reference-python"] for name in agentest.__all__)
    assert "`scenarios`" in text["reference-results"]
    for page in tmp_path.rglob("*.md"):
        assert "<!-- generated" not in page.read_text("utf-8")
        for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def recipes() -> list[Any]:
    """The rows of the cookbook: a response, a path, and the value it finds."""
    rows = []
    for line in (DOCS / "jmespath.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in _CELL.split(line)[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`"):
            answer, path, result = (re.sub(r"^(`+) ?(.*?) ?\1$", r"\2", cell) for cell in cells)
            rows.append(pytest.param(answer, path.replace("\\|", "|"), result, id=path))
    return rows


@pytest.mark.parametrize(("answer", "path", "result"), recipes())
def test_recipes_find_their_values(answer: str, path: str, result: str) -> None:
    """Each row of the JMESPath cookbook is right."""
    assert jmespath.search(path, json.loads(answer)) == json.loads(result)


def messages() -> list[Any]:
    """The headings of the troubleshooting page, with the output below each."""
    text = (DOCS / "troubleshooting.md").read_text("utf-8")
    sections = re.findall(r"^### `([^\n]+)`\n\n(?:```text\n(.*?)```)?", text, re.M | re.S)
    return [pytest.param(message, printed, id=message) for message, printed in sections]


@pytest.fixture(scope="module")
def literals() -> str:
    """Every text in the package's code, with `…` for values."""
    found = []
    for module in sorted((ROOT / "agentest").rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


@pytest.mark.parametrize(("message", "printed"), messages())
def test_messages_are_those_of_the_code(message: str, printed: str, literals: str) -> None:
    """The code can print each message of the troubleshooting page, and the example shows it."""
    parts = [part.strip(" ;:,.)'`?!") for part in re.split(r"…|\d{3}|[(:]", message)]
    for part in filter(None, parts):
        assert part in literals, f"no text in the code has {part!r}"
        assert not printed or part in " ".join(printed.split())


def test_there_are_messages() -> None:
    """The page has at least the thirty most common messages."""
    assert len(messages()) >= 30
