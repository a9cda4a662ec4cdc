"""The page as one document."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from agentest.plugins.page.viewer.page import ASSETS, PageVariant, joined, modules, page, page_text

MOST_BYTES = 150_000
NAMES = [each.name for each in ASSETS.iterdir() if each.name.endswith((".js", ".css"))]


@pytest.mark.parametrize("coat", PageVariant)
def test_the_joined_script_is_one_that_can_be_parsed(coat: PageVariant, tmp_path: Path) -> None:
    """Each coat's modules join to one script without errors of syntax."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node; the browser's tests prove the same")
    path = tmp_path / "page.js"
    path.write_text(joined(coat), encoding="utf-8")
    subprocess.run([node, "--check", str(path)], check=True)


@pytest.mark.parametrize("coat", PageVariant)
def test_the_page_is_small(coat: PageVariant) -> None:
    """All of the page, modules and style sheet, is less than 150 kB."""
    size = len(page_text(page(coat, "agentest")).encode())
    assert size < MOST_BYTES, f"{size:,} bytes; the files of the page are, with comments: {sizes()}"


def sizes() -> str:
    """The size of each file: where to look if the page is too large."""
    found = sorted(((len((ASSETS / name).read_bytes()), name) for name in NAMES), reverse=True)
    return ", ".join(f"{name} {size:,}" for size, name in found)


def test_no_module_is_left_out() -> None:
    """Every asset is part of one of the pages."""
    used = {name for coat in PageVariant for name in modules(coat)}
    assert not [name for name in NAMES if name.endswith(".js") and name not in used]
