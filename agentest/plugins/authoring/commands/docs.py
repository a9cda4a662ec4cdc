"""`agentest docs`: pages of the documentation in the terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from agentest.cli.options import exits, option, path_option
from agentest.plugins.authoring.documentation import Documentation
from agentest.support.errors import ExitCode, UsageError
from agentest.support.terminal import encodable, say

_WIDTH = 100
"""Longer rows are hard to read, however wide the terminal is."""


@click.command()
@click.argument("topic", nargs=-1)
@option("--search", "TEXT", "List sections that contain these words, such as an error message.")
@path_option("--llms", "Write llms.txt and llms-full.txt, for language models, to this folder.")
@exits
def docs(topic: tuple[str, ...], search: str | None, llms: Path | None) -> ExitCode:
    """Print a page of the documentation, or list the topics.

    The page is formatted on a terminal and plain Markdown in a pipe.
    """
    documentation = Documentation()
    if llms:
        try:
            written = documentation.write_llms(llms)
        except OSError as error:
            raise UsageError(f"--llms: {llms} cannot be written to: {error.strerror}") from None
        for path in written:
            say(f"{path}: written")
    elif search is not None:
        _print_hits(documentation, search)
    elif topic:
        _print_page(documentation.text(documentation.find(" ".join(topic))))
    else:
        width = max(len(page.topic) for page in documentation.pages)
        for page in documentation.pages:
            say(f"{page.topic:<{width}}  {page.title}")
        say("\nagentest docs TOPIC prints a page; --search TEXT finds sections.")
    return ExitCode.PASSED


def _print_hits(documentation: Documentation, text: str) -> None:
    hits = documentation.search(text)
    if not hits:
        raise UsageError(f"no section contains all words of {text!r}: use fewer words")
    for hit in hits:
        say(f"agentest docs {hit.topic}: {hit.heading}\n    {hit.text}")


def _print_page(text: str) -> None:
    if not sys.stdout.isatty():
        say(text)
        return
    from rich.markdown import Markdown

    from agentest.report.console.printer import open_console

    console = open_console(os.environ, sys.stdout)
    console.print(
        Markdown(encodable(text, sys.stdout.encoding or "utf-8"), hyperlinks=False),
        width=min(console.width, _WIDTH),
    )
