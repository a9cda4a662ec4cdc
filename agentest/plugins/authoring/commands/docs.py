"""`agentest docs`: pages of the documentation in the terminal, found by topic, searched and listed.

The wheel has them in `agentest/docs`, a checkout next to the package. Pages link to each other, which means
nothing in a terminal, so links become `agentest docs TOPIC`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import click

from agentest.cli.options import exits, option
from agentest.plugin import PLUGINS
from agentest.support.errors import ExitCode, UsageError
from agentest.support.terminal import say
from agentest.support.text import nearest_part, shortened

_PACKAGE = Path(__file__).parents[3]
_FOLDERS = (_PACKAGE / "docs", _PACKAGE.parent / "docs")
"""Where the pages are: in the wheel, and in a checkout."""
_FENCED = re.compile(r"^(```.*?^```[^\S\n]*$)", re.M | re.S)
_IMAGE = re.compile(r"!\[([^\]]*)\]\([^)\s]*\)")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^(#+) +(.+?)\s*$")
_MOST_HITS = 10
_HIT_CHARS = 160


@click.command()
@click.argument("topic", nargs=-1)
@option("--search", "TEXT", "List sections that contain these words, such as an error message.")
@exits
def docs(topic: tuple[str, ...], search: str | None) -> ExitCode:
    """Print a page of the documentation as Markdown, or list the topics."""
    documentation = Documentation()
    if search is not None:
        hits = documentation.search(search)
        if not hits:
            raise UsageError(f"no section contains all words of {search!r}: use fewer words")
        for found, heading, row in hits:
            say(f"agentest docs {found}: {heading}\n    {row}")
    elif topic:
        say(documentation.text(documentation.find(" ".join(topic))))
    else:
        width = max(len(page.topic) for page in documentation.pages)
        for page in documentation.pages:
            say(f"{page.topic:<{width}}  {page.title}")
        say("\nagentest docs TOPIC prints a page; --search TEXT finds sections.")
    return ExitCode.PASSED


class DocsPage:
    """A page of the documentation."""

    def __init__(self, path: Path, topic: str) -> None:
        self.path = path
        self.topic = topic

    @cached_property
    def source(self) -> str:
        """The page as Markdown, as it is in the file."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def title(self) -> str:
        """The first heading."""
        headings = (_HEADING.match(row) for row in self.source.splitlines())
        return next((found[2] for found in headings if found), self.topic)

    def sections(self) -> Iterator[tuple[str, str]]:
        """Yield the heading and the text of each section."""
        heading, rows, fenced = self.title, list[str](), False
        for row in self.source.splitlines():
            fenced ^= row.startswith("```")
            found = None if fenced else _HEADING.match(row)
            if found:
                yield heading, "\n".join(rows)
                heading, rows = found[2], []
            else:
                rows.append(row)
        yield heading, "\n".join(rows)


class Documentation:
    """All pages of a folder.

    Args:
        folder: the folder of the pages; by default that of this installation. Raises UsageError if it has
            none.
    """

    def __init__(self, folder: Path | None = None) -> None:
        folders = [folder] if folder else [each for each in _FOLDERS if each.is_dir()]
        files = sorted(folders[0].rglob("*.md")) if folders else []
        if not files:
            raise UsageError("this installation of Agentest has no documentation: install it again")
        self.folder = folders[0]
        names = Counter(path.stem for path in files)
        self.pages = tuple(DocsPage(path, self._topic(path, names)) for path in files)
        """In the order of their paths."""
        self._by_path = {page.path.resolve(): page for page in self.pages}

    def _topic(self, path: Path, names: Counter[str]) -> str:
        if names[path.stem] == 1:
            return path.stem
        return path.relative_to(self.folder).with_suffix("").as_posix()

    def find(self, topic: str) -> DocsPage:
        """Return the page of a topic: its name, path or title, or an agent's `type`. Raises UsageError."""
        wanted = topic.casefold().removesuffix(".md").strip("/").removeprefix("docs/")
        names: dict[str, DocsPage] = {}
        for page in self.pages:
            path = page.path.relative_to(self.folder).with_suffix("").as_posix()
            for name in (page.topic, path, page.title, page.title.replace(" ", "-")):
                names.setdefault(name.casefold(), page)
        spellings = (wanted, wanted.replace(" ", "-"), wanted.replace(" ", "/"))
        found = next((names[each] for each in spellings if each in names), None)
        if found := found or self._page_of_type(wanted.replace("-", "_")):
            return found
        close = nearest_part(wanted, names)
        hint = (
            f"did you mean `agentest docs {names[close].topic}`?" if close else "`agentest docs` lists them"
        )
        raise UsageError(f"there is no page about {topic!r}; {hint}")

    def _page_of_type(self, kind: str) -> DocsPage | None:
        """Return the page of an agent type. Raises UsageError if its plug-in documents it elsewhere."""
        feature = PLUGINS.find("agent type", kind)
        place = feature.facts.get("docs", "") if feature else ""
        page = self._by_path.get((self.folder / f"{place}.md").resolve())
        if place and not page:
            raise UsageError(f"agent type {kind!r} of a plug-in is documented at {place}")
        return page

    def text(self, page: DocsPage) -> str:
        """Return a page as Markdown for a terminal: without images, and with topics in place of links."""
        parts = _FENCED.split(page.source)
        return "".join(part if part.startswith("```") else self._unlinked(part, page) for part in parts)

    def search(self, text: str) -> list[tuple[str, str, str]]:
        """Return topic, heading and a fitting row of the sections that contain all words of a text.

        Those with words in their heading come first.
        """
        words = text.casefold().split()
        hits: list[tuple[int, tuple[str, str, str]]] = []
        for page in self.pages:
            for heading, body in page.sections():
                whole = f"{heading}\n{body}".casefold()
                if not words or not all(word in whole for word in words):
                    continue
                in_heading = sum(word in f"{page.title} {heading}".casefold() for word in words)
                score = 10 * in_heading + 5 * (text.casefold() in whole)
                hits.append((-score, (page.topic, heading, _row_with(words, body))))
        hits.sort(key=lambda hit: hit[0])
        return [hit for _, hit in hits[:_MOST_HITS]]

    def key_meaning(self, key: str) -> str:
        """Return what a table says about a configuration key; "" if none does."""
        row = re.compile(rf"^\| `{re.escape(key)}`[^|]*\|(.+)\|\s*$", re.M)
        for page in sorted(self.pages, key=lambda page: page.topic != "configuration"):
            if found := row.search(page.source):
                cells = filter(None, map(str.strip, found[1].split("|")))
                return _without_targets("; ".join(cells))
        return ""

    def _unlinked(self, text: str, page: DocsPage) -> str:
        def replaced(match: re.Match[str]) -> str:
            shown, target = match[1], match[2]
            if "://" in target:
                return f"{shown} ({target})"
            file = target.partition("#")[0]
            linked = self._by_path.get((page.path.parent / file).resolve()) if file else None
            return f"{shown} (agentest docs {linked.topic})" if linked else shown

        return _LINK.sub(replaced, _IMAGE.sub("", text))


def _without_targets(text: str) -> str:
    return _LINK.sub(lambda match: match[1], text)


def _row_with(words: Iterable[str], text: str) -> str:
    rows = [row for row in text.splitlines() if row.strip() and not row.startswith("```")]
    best = max(rows, key=lambda row: sum(word in row.casefold() for word in words), default="")
    return shortened(_without_targets(best), _HIT_CHARS)
