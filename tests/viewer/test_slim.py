"""Scripts without comments, indentation and spaces."""

from __future__ import annotations

import pytest

from agentest.report.viewer.page import ASSETS, asset_names, minify, tokens

CASES = {
    "spaces": ("const  a = { b: 1, c };", "const a={b:1,c};\n"),
    "comments": ("a(); // why\n// more\nb();", "a();b();\n"),
    "a break that ends a statement": ("let a = b\nc()", "let a=b\nc()\n"),
    "words": ('if ("a" in b) return typeof c;', 'if("a"in b)return typeof c;\n'),
    "signs": ("a + +b - -c + ++d", "a+ +b- -c+ ++d\n"),
    "texts": ('f("a  // b", \'c  d\', "\\"  ")', 'f("a  // b",\'c  d\',"\\"  ")\n'),
    "texts in backticks": (
        'f(`a  ${b ? `  ${c}  ` : "} "}  // d` , e)',
        'f(`a  ${b ? `  ${c}  ` : "} "}  // d`,e)\n',
    ),
    "patterns": ('const a = /[/ ]  \\/ "/g, b = c / d / e;', 'const a=/[/ ]  \\/ "/g,b=c/d/e;\n'),
    "a pattern after a word": ("return /a  b/.test(c);", "return/a  b/.test(c);\n"),
    "a pattern after an arrow": ("(a) => /x  y/.test(a)", "(a)=>/x  y/.test(a)\n"),
}


@pytest.mark.parametrize(("script", "expected"), CASES.values(), ids=CASES)
def test_only_what_means_nothing_goes(script: str, expected: str) -> None:
    """Texts and patterns keep their spaces, and pieces that would be read as one keep theirs."""
    assert minify(script) == expected


@pytest.mark.parametrize("name", sorted(name for name in asset_names() if name.endswith(".js")))
def test_a_module_keeps_its_tokens(name: str) -> None:
    """What is left of each module are its tokens, all of them, and slimming again changes nothing."""
    script = (ASSETS / name).read_text(encoding="utf-8")
    slimmed = minify(script)
    assert [token.text for token in tokens(slimmed)] == [token.text for token in tokens(script)]
    assert minify(slimmed) == slimmed


def test_a_text_without_an_end_is_an_error() -> None:
    """A script that cannot be read is not shortened."""
    with pytest.raises(ValueError, match="no end"):
        minify("f(`a${b}")
