"""Documents of mock servers that are not files, too large, or malformed: refused, and not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from odd_files import ODD, check_odd_file
from openapi_documents import SHOP
from project import Project

from agentest.plugins.servers.mcp.real_server import read_tools
from agentest.plugins.servers.rest.document import Document
from agentest.support.errors import ConfigError
from agentest.support.files import MOST_BYTES

REST = {"server": {"command": "true", "ready": "http://127.0.0.1:9/"}}
GIVEN: dict[str, dict[str, Any]] = {
    "api.yaml": {"rest_mock": {"openapi": "api.yaml"}},
    "tools.json": {"mcp_mock": {"tools": "tools.json"}},
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", GIVEN)
def test_pipes_and_devices_are_not_opened(project: Project, name: str, kind: str) -> None:
    check_odd_file(project, name, kind, ("run",), {**REST, **GIVEN[name]})


def test_the_size_is_looked_at_first(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(MOST_BYTES + 1)  # it takes no room
    for read in (Document, read_tools):
        with pytest.raises((OSError, ValueError, ConfigError), match="50,000,001 bytes; at most"):
            read(large)


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_number_of_very_many_digits(project: Project, suffix: str) -> None:
    """The error says so in every file, without a traceback or Python's advice."""
    digits = "9" * 5_000
    text = json.dumps(SHOP)[:-1] + f', "x-number": {digits}}}'
    path = project.write(f"api.{suffix}", text if suffix == "json" else text.replace("{", "\n{", 1))
    if suffix == "yaml":
        path.write_text(f"openapi: 3.1.0\nx-number: {digits}\n")
    with pytest.raises(
        ConfigError, match="a number has more than 4,300 digits; write it as a text"
    ) as caught:
        Document(path)
    assert str(caught.value).startswith(str(path) + (":2: " if suffix == "yaml" else ": "))
    tools = project.write("tools.json", f'{{"tools": [], "n": {digits}}}')
    with pytest.raises(ValueError, match="is not JSON: a number has more than 4,300 digits"):
        read_tools(tools)


class Counted(str):
    """A text that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def test_very_many_keys_that_are_given_twice(tmp_path: Path) -> None:
    """The first key that is given twice is found without comparing each with each."""
    from agentest.plugins.servers.rest.document import _unique

    Counted.compared = 0
    names = [Counted(f"key {n}") for n in range(4_000)]
    with pytest.raises(ValueError, match="the key 'key 3999' is given twice in one object"):
        _unique([(name, 1) for name in [*names, Counted("key 3999")]])
    assert Counted.compared < 20_000
    path = tmp_path / "api.json"
    path.write_text("{" + ", ".join(f'"key {n // 2}": 1' for n in range(80_000)) + "}")
    with pytest.raises(ConfigError, match="the key 'key 0' is given twice"):
        Document(path)
