"""Scripts without comments and indentation."""

from __future__ import annotations

import pytest

from agentest.report.viewer.page import ASSETS, without_layout


def test_layout_goes_and_statements_stay() -> None:
    """Indentation, blank lines and lines of comments mean nothing; the rest of a row may be a text."""
    script = '// why\nif (a) {\n  b("// c"); // d\n\n  // e\n}\n'
    assert without_layout(script) == 'if (a) {\nb("// c"); // d\n}\n'


@pytest.mark.parametrize("name", sorted(each.name for each in ASSETS.iterdir() if each.name.endswith(".js")))
def test_no_text_in_backticks_spans_lines(name: str) -> None:
    """Its indentation would go, too."""
    for row in without_layout((ASSETS / name).read_text(encoding="utf-8")).split("\n"):
        assert row.partition(" // ")[0].count("`") % 2 == 0, row
