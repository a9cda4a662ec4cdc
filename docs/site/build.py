"""Build the documentation site: `python docs/site/build.py [FOLDER]`, or `nox -s docs`.

FOLDER (build/site) gets a folder for each version, a versions.json for the version menu, and an index.html
that leads to the newest. Nothing in it loads anything from another host, so it can be opened as files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from reference import fill

from agentest import __version__

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent
REPOSITORY = DOCS.parent
PROJECT = {
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "ARCHITECTURE.md": "architecture",
    "benchmarks/README.md": "benchmarks",
}
"""Pages outside docs/ that the site has, too, and their names in its folder `project`."""
SHIM = "frame-worker.js"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]*)(#[^)\s]+)?\)")


def main(folder: Path) -> None:
    """Build this version's site into a folder of `folder`."""
    settings = tomllib.loads((HERE / "zensical.toml").read_text("utf-8"))["project"]
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        write_pages(work / "docs")
        check_navigation(work / "docs", set(pages_of(settings["nav"])))
        shutil.copy(HERE / "zensical.toml", work)
        command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
        built = subprocess.run(command, cwd=work, check=False)
        if built.returncode:
            sys.exit(built.returncode)
        use_own_shim(work / "site")
        check_offline(work / "site")
        target = folder / __version__
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(work / "site", target)
    write_versions(folder)
    print(f"Open {target / 'index.html'}")


def write_pages(folder: Path) -> None:
    """Copy the pages, with the reference written into them and links that lead to pages of the site."""
    places = {page: page.relative_to(DOCS) for page in sorted(DOCS.rglob("*.md"))}
    places |= {REPOSITORY / name: Path("project", f"{short}.md") for name, short in PROJECT.items()}
    for page, place in places.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        found = "" if place.parts[0] != "project" else "---\nsearch:\n  exclude: true\n---\n\n"
        target.write_text(found + fill(relink(page, places)), "utf-8")
    shutil.copytree(DOCS / "images", folder / "images")
    (folder / "assets").mkdir()
    for name in (SHIM, "agentest.css"):
        shutil.copy(HERE / name, folder / "assets")


def relink(page: Path, places: dict[Path, Path]) -> str:
    """The text of a page; a link to a file that the site does not have becomes the name of that file."""
    here = places[page]

    def link(match: re.Match[str]) -> str:
        image, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target or target.startswith(("http://", "https://")):
            return match[0]
        leads_to = (page.parent / target).resolve()
        if leads_to == REPOSITORY / "README.md":
            leads_to = DOCS / "index.md"
        if image or leads_to.is_relative_to(DOCS / "images"):
            place = leads_to.relative_to(DOCS)
        elif leads_to in places:
            place = places[leads_to]
        else:
            name = leads_to.relative_to(REPOSITORY).as_posix()
            return f"`{name}`" if text.strip("`") == name else f"{text} (`{name}`)"
        return f"{image}[{text}]({os.path.relpath(place, here.parent)}{anchor})"

    return _LINK.sub(link, page.read_text("utf-8"))


def pages_of(nav: Any) -> Iterator[str]:
    """The pages of a navigation, which is a tree of lists and mappings."""
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from pages_of(part)


def check_navigation(folder: Path, listed: set[str]) -> None:
    """Exit if a page is missing from the navigation, or the navigation has one that does not exist."""
    there = {page.relative_to(folder).as_posix() for page in folder.rglob("*.md")}
    for page in sorted(there - listed):
        print(f"docs/{page} is missing from the navigation: add it to `nav` in docs/site/zensical.toml")
    for page in sorted(listed - there):
        print(f"`nav` in docs/site/zensical.toml lists {page}, which does not exist")
    if there != listed:
        sys.exit(1)


def use_own_shim(site: Path) -> None:
    """Load the stand-in for workers from the site: Zensical's offline pages load one from another host."""
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        path = os.path.relpath(site / "assets" / SHIM, page.parent)
        page.write_text(text.replace("https://unpkg.com/iframe-worker/shim", path), "utf-8")


class _Loaded(HTMLParser):
    """Collects what a page loads from other hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        loads = values.get("href") if tag == "link" else None if tag == "a" else values.get("src")
        if loads and re.match(r"(https?:)?//", loads) and values.get("rel") not in ("canonical", "icon"):
            self.found.append(loads)


def check_offline(site: Path) -> None:
    """Exit if a page or a style sheet loads anything from another host."""
    found = set()
    for page in site.rglob("*.html"):
        parser = _Loaded()
        parser.feed(page.read_text("utf-8"))
        found |= {f"{page.relative_to(site)} loads {address}" for address in parser.found}
    for sheet in site.rglob("*.css"):
        addresses = re.findall(r"url\(\"?'?((?:https?:)?//[^)\"']+)", sheet.read_text("utf-8"))
        found |= {f"{sheet.relative_to(site)} loads {address}" for address in addresses}
    if found:
        sys.exit("\n".join(sorted(found)))


def write_versions(folder: Path) -> None:
    """List the versions that are there, the newest first, and lead to the newest."""
    versions = [entry.name for entry in folder.iterdir() if (entry / "index.html").exists()]
    versions.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)], reverse=True)
    entries = [{"version": name, "title": name, "aliases": []} for name in versions]
    (folder / "versions.json").write_text(json.dumps(entries, indent=1) + "\n", "utf-8")
    page = f'<!doctype html><meta http-equiv="refresh" content="0; url={versions[0]}/index.html">\n'
    (folder / "index.html").write_text(page, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else REPOSITORY / "build" / "site").resolve())
