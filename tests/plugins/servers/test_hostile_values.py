"""Arguments and bodies that would take for ever to look at."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import process_time
from typing import Any

import anyio
import pytest
from openapi_documents import api_of, document, operation

from agentest.plugins.servers.mcp.tool_catalog import catalog
from agentest.plugins.servers.rest.request_reader import ParsedRequest, ToolHttpRequest, read_request

ENDLESS = {"type": "string", "pattern": "^(a+)+$"}
TEXT = "a" * 60 + "!"
"""On it the pattern takes longer than there is time."""


def sent(content: Any, body: bytes, kind: str) -> ParsedRequest:
    """How a body of that kind is read."""
    told = operation("send", requestBody={"content": content})
    with tempfile.TemporaryDirectory() as folder:
        found = api_of(Path(folder), document({"/": {"post": told}})).operations[0]
        return read_request(
            found,
            ToolHttpRequest(query=[], headers={"content-type": kind}, body=body, values={}),
            frozenset(),
        )


@pytest.mark.slow
def test_a_pattern_without_end_ends() -> None:
    """A pattern that takes for ever on a text is given up with the reason, by MCP and by REST."""
    schema = {"type": "object", "properties": {"name": ENDLESS}}
    entry = {"name": "book", "inputSchema": schema}
    problem = anyio.run(catalog([entry], (), print).argument_problem, "book", {"name": TEXT})
    assert problem
    assert "gave no answer within" in problem
    read = sent(
        {"application/json": {"schema": schema}}, f'{{"name": "{TEXT}"}}'.encode(), "application/json"
    )
    assert read.problem
    assert "gave no answer within" in read.problem


def test_a_form_of_very_many_fields() -> None:
    """The time for a form grows with its fields, and not with their square."""
    part = '--cut\r\ncontent-disposition: form-data; name="f{}[a]"\r\n\r\nx\r\n'
    parts = "".join(map(part.format, range(9_000)))
    schema = {"schema": {"type": "object"}}
    began = process_time()
    read = sent(
        {"multipart/form-data": schema}, f"{parts}--cut--\r\n".encode(), "multipart/form-data; boundary=cut"
    )
    assert len(read.arguments) == 9_000
    assert process_time() - began < 15  # it took a minute
    many = sent(
        {"multipart/form-data": schema}, f"{parts * 2}--cut--".encode(), "multipart/form-data; boundary=cut"
    )
    assert many.problem == "body: is a form of more than 10,000 parts"
