"""Random edits of evaluation sets over HTTP: whatever is sent, the file stays readable."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import evalset_documents as documents
import pytest
from pydantic.alias_generators import to_camel
from ui_server import Client, with_server

from agentest.plugins.adk.formats.set_reader import read_eval_set

NAME = "shop.evalset.json"
ODD: tuple[Any, ...] = (
    "x",
    'ü\u2028"\\',
    5,
    1.5,
    None,
    True,
    [],
    {},
    {"a": [1, {"b": 2}]},
    "a\nb\r\n",
    10**25,
    "\0",
)
TWO = (
    documents.case(
        "one", documents.invocation("Hello.", "Hi.", [documents.use("greet", who="me")]), owner="me"
    ),
    documents.case("two", documents.invocation("Bye.")),
)


def camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {to_camel(key): camel(each) for key, each in value.items()}
    return [camel(each) for each in value] if isinstance(value, list) else value


WHOLE = documents.eval_set("shop", *TWO)
FORMS: dict[str, Callable[[], str]] = {
    "lines": lambda: json.dumps(WHOLE, indent=2) + "\n",
    "tabs and CRLF": lambda: json.dumps(WHOLE, indent="\t").replace("\n", "\r\n"),
    "camelCase in one line, with a mark": lambda: "\ufeff" + json.dumps(camel(WHOLE)),
    "a list": lambda: json.dumps(TWO, indent=4),
    "keys twice": lambda: json.dumps(WHOLE, indent=2).replace(
        '"owner": "me"', '"owner": "me", "owner": "you"'
    ),
}


def places(value: Any, holder: Any = None, key: Any = None) -> Iterator[tuple[Any, Any]]:
    """The holder and the key of each value within."""
    if holder is not None:
        yield holder, key
    for name, each in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    ):
        yield from places(each, value, name)


def edited(case: Any, random: Random) -> Any:
    """The case with something put in place of a value, taken out, or put in twice."""
    case = copy.deepcopy(case)
    holder, key = random.choice(list(places(case)))
    what = random.choice(("put", "drop", "twice"))
    if what == "put":
        holder[key] = random.choice(ODD)
    elif what == "drop":
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(key, holder[key])
    else:
        holder[f"{key}_again"] = holder[key]
    return case


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_random_edits_leave_a_set_that_is_read(form: Callable[[], str], tmp_path: Path) -> None:
    """A refused edit leaves every byte, an accepted one a set that `agentest eval` reads."""
    file, random = tmp_path / NAME, Random(7)
    file.write_bytes(form().encode())

    async def work(client: Client) -> None:
        for _ in range(40):
            before = file.read_bytes()
            chosen = random.choice(read_eval_set(file).eval_set.eval_cases).eval_id
            status, opened = await client.ask("GET", "/api/cases/case", file=NAME, id=chosen)
            assert status == 200, opened
            body = {"file": NAME, "id": chosen, "version": opened["version"]}
            method = random.choice(("PUT", "PUT", "PUT", "POST", "DELETE"))
            if method != "DELETE":
                body["case"] = edited(opened["case"], random)
            status, answer = await client.ask(method, "/api/cases/case", **body)
            assert status in (200, 400, 422), answer
            assert status == 200 or file.read_bytes() == before
            assert read_eval_set(file)

    with_server(tmp_path, work)
