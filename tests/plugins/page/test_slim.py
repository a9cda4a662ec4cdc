"""Scripts without comments and indentation."""

from __future__ import annotations

import pytest

from agentest.plugins.page.viewer.page import ASSETS, without_layout


def test_layout_goes_and_statements_stay() -> None:
    """Indentation, blank lines and comments mean nothing; the rest of a row may be a text."""
    script = '// why\nif (a) {\n  b("// c  =  1"); // d\n\n  // e\n}\nc();\n'
    assert without_layout(script) == 'if(a){b("// c  =  1");}c();'


def test_spaces_go_only_where_they_mean_nothing() -> None:
    """Texts and regular expressions stay; words and signs that would join others stay apart."""
    script = """const a = `x = ${ b }`, c = (/ = "\\/[ / ]" /g, d - -e + 1) / 2;\nreturn { "f = g": f };\n"""
    tight = """let a=`x = ${ b }`,c=(/ = "\\/[ / ]" /g,d - -e+1)/ 2;return{"f = g":f};"""
    assert without_layout(script) == tight


def test_a_script_that_cannot_be_read_is_refused() -> None:
    """A template in a template would lose the spaces of its texts."""
    with pytest.raises(ValueError, match="a template in a template"):
        without_layout("const a = `b${c ? `d (e)` : f}`;\n")


@pytest.mark.parametrize("name", sorted(each.name for each in ASSETS.iterdir() if each.name.endswith(".js")))
def test_no_text_in_backticks_spans_lines(name: str) -> None:
    """Removing layout would also remove its indentation."""
    for row in without_layout((ASSETS / name).read_text(encoding="utf-8")).split("\n"):
        assert row.count("`") % 2 == 0, row
