"""Scripts without comments and indentation."""

from __future__ import annotations

import pytest

from agentest.report.viewer.page import ASSETS, without_layout


def test_layout_goes_and_statements_stay() -> None:
    """Indentation, blank lines and lines of comments mean nothing; the rest of a row may be a text."""
    script = '// why\nif (a) {\n  b("// c  =  1"); // d\n\n  // e\n}\n'
    assert without_layout(script) == 'if(a){\nb("// c  =  1");// d\n}\n'


def test_spaces_go_only_where_they_mean_nothing() -> None:
    """Strings, templates and regular expressions stay; words and signs that would join others stay apart."""
    script = """const a = `x = ${ b }`, c = (/ = "\\/[ / ]" /g, d - -e) / 2;\nreturn a in { "f = g": h };\n"""
    tight = """const a=`x = ${ b }`,c=(/ = "\\/[ / ]" /g,d - -e)/ 2;\nreturn a in{"f = g":h};\n"""
    assert without_layout(script) == tight


@pytest.mark.parametrize("name", sorted(each.name for each in ASSETS.iterdir() if each.name.endswith(".js")))
def test_no_text_in_backticks_spans_lines(name: str) -> None:
    """Its indentation would go, too; and none stands in another, where the inner ones are taken for code."""
    for row in without_layout((ASSETS / name).read_text(encoding="utf-8")).split("\n"):
        pieces = row.partition(" // ")[0].split("`")
        assert len(pieces) % 2 == 1, row
        assert all("${" not in text.rpartition("}")[2] for text in pieces[1::2]), row
