"""Evaluation sets over HTTP: the requests of the page of `agentest ui`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import evalset_documents as documents
import pytest
from page_at import serve_at_port

from agentest.plugins.page.server.json_routes import WebProject

NAME = "shop.evalset.json"
ONE = documents.case("one", documents.invocation("Hello.", "Hi.", [documents.use("greet", who="me")]))
TWO = documents.case("two", documents.invocation("Bye.", "See you."))

Ask = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with a set of two cases."""
    (tmp_path / NAME).write_text(documents.text(documents.eval_set("shop", ONE, TWO)))
    return tmp_path


def asking(folder: Path, work: Callable[[Ask], Awaitable[None]]) -> None:
    """Do some work with a server of the project. `ask(method, path, **body)` gives status and JSON."""

    async def served() -> None:
        project = WebProject(root=folder, config=None, output_dir=folder / ".agentest")
        async with serve_at_port(project, 0) as server, aiohttp.ClientSession() as session:
            origin, _, token = server.partition("/?token=")

            async def ask(method: str, path: str, **body: Any) -> tuple[int, Any]:
                more = {"params": body} if method == "GET" else {"json": body}
                headers = {"Authorization": f"Bearer {token}"}
                async with session.request(
                    method, f"{origin}/api/cases{path}", headers=headers, **more
                ) as got:
                    return got.status, await got.json()

            await work(ask)

    asyncio.run(served())


def test_a_case_is_opened_and_saved(folder: Path) -> None:
    """The page gets a case as value and as text, and what it changed of it is in the file."""

    async def work(ask: Ask) -> None:
        _, found = await ask("GET", "")
        assert [(each["file"], [case["id"] for case in each["cases"]]) for each in found["sets"]] == [
            (NAME, ["one", "two"])
        ]
        _, opened = await ask("GET", "/case", file=NAME, id="one")
        assert (opened["case"], json.loads(opened["text"]), opened["camel"]) == (ONE, ONE, False)
        opened["case"]["conversation"][0]["user_content"]["parts"][0]["text"] = "Good day."
        keys = ("file", "version", "id", "case")
        status, saved = await ask("PUT", "/case", **{key: opened[key] for key in keys})
        assert (status, saved["id"], saved["notes"]) == (200, "one", [])
        status, again = await ask("PUT", "/case", **{key: opened[key] for key in keys})
        assert (status, again["version"]) == (409, saved["version"])
        assert [case["id"] for case in again["cases"]] == ["one", "two"]

    before = (folder / NAME).read_text()
    asking(folder, work)
    assert (folder / NAME).read_text() == before.replace("Hello.", "Good day.")


def test_cases_are_made_copied_and_removed(folder: Path) -> None:
    """Each edit gives the version with which the next one begins."""

    async def work(ask: Ask) -> None:
        _, listed = await ask("GET", "")
        version = listed["sets"][0]["version"]
        _, added = await ask(
            "POST", "/case", file=NAME, version=version, case=documents.simulated("new"), place=1
        )
        _, copied = await ask("POST", "/copy", file=NAME, version=added["version"], id="new")
        assert copied["id"] == "new_copy"
        _, removed = await ask("DELETE", "/case", file=NAME, version=copied["version"], id="one")
        assert (removed["place"], json.loads(removed["text"])) == (0, ONE)
        status, made = await ask("POST", "/set", file="sets/b.test.json", case=TWO)
        assert (status, made["case"]) == (200, TWO)
        status, refused = await ask("POST", "/set", file="sets/b.test.json", case=TWO)
        assert status == 409
        assert "is there already" in refused["error"]

    asking(folder, work)
    ids = [case["eval_id"] for case in json.loads((folder / NAME).read_text())["eval_cases"]]
    assert ids == ["new", "new_copy", "two"]


def test_errors_are_reported_for_their_field(folder: Path) -> None:
    """Nothing is written that cannot be read; the way to the field has the page's own spelling."""
    wrong = {**ONE, "conversation": [{"user_content": {"parts": [{"text": 5}]}}]}

    async def work(ask: Ask) -> None:
        _, opened = await ask("GET", "/case", file=NAME, id="one")
        expected = ["conversation", 0, "userContent", "parts", 0, "text"]
        for method, path in (("PUT", "/case"), ("POST", "/check")):
            status, refused = await ask(
                method, path, file=NAME, version=opened["version"], id="one", case=wrong
            )
            assert status == 422
            assert [each["path"] for each in refused["problems"]] == [expected]
        status, checked = await ask("POST", "/check", file=NAME, id=None, case={**TWO, "eval_id": "a,b"})
        assert (status, checked["notes"][0]["path"]) == (200, ["evalId"])

    before = (folder / NAME).read_text()
    asking(folder, work)
    assert (folder / NAME).read_text() == before


def test_texts_of_sets_and_criteria_are_edited(folder: Path) -> None:
    """A file of criteria that is not there is empty, and comes to be when it is saved."""

    async def work(ask: Ask) -> None:
        _, empty = await ask("GET", "/text", file="test_config.json")
        assert (empty["version"], empty["text"]) == (None, "")
        text = '{"criteria": {"safety_v1": 1}}'
        status, refused = await ask(
            "PUT", "/text", file="test_config.json", version=None, text='{"criteria": 1}'
        )
        assert (status, refused["problems"][0]["path"]) == (422, None)
        status, saved = await ask("PUT", "/text", file="test_config.json", version=None, text=text)
        assert (status, saved["text"]) == (200, text)
        (folder / "test_config.json").write_text("other")
        status, changed = await ask(
            "PUT", "/text", file="test_config.json", version=saved["version"], text=text
        )
        assert (status, changed["text"]) == (409, "other")
        (folder / "test_config.json").unlink()
        status, gone = await ask("PUT", "/text", file="test_config.json", version=saved["version"], text=text)
        assert (status, gone["version"]) == (409, None)

    asking(folder, work)


def test_a_case_of_a_legacy_set_is_shown(folder: Path) -> None:
    """A case that cannot be edited can be read, with the reason and advice."""
    (folder / "old.test.json").write_text('[{"query": "Hi.", "reference": "Hello."}]')

    async def work(ask: Ask) -> None:
        _, shown = await ask("GET", "/case", file="old.test.json", id="old")
        assert shown["case"]["conversation"][0]["user_content"] == documents.message("user", "Hi.")
        assert "agentest migrate" in shown["readOnly"]

    asking(folder, work)


REQUESTS = [
    ("GET", "/case", {}, "`file` is missing"),
    ("GET", "/case", {"file": "../x.evalset.json", "id": "a"}, "outside of the project"),
    ("GET", "/case", {"file": NAME, "id": "three"}, "the case 'three' no longer exists"),
    ("GET", "/text", {"file": "agentest.config.py"}, "its name ends neither"),
    ("GET", "/text", {"file": "x" * 300 + ".test.json"}, "a name of 310 bytes, and 255 are allowed"),
    ("PUT", "/text", {"file": "a\n.test.json", "version": None, "text": ""}, "another control character"),
    ("PUT", "/case", {"file": 5}, "`file` must be a text"),
    ("PUT", "/case", {"file": NAME, "version": "x", "id": "one"}, "neither `case` nor `text`"),
    ("POST", "/case", {"file": NAME, "version": "x", "case": 1, "place": "a"}, "must be a whole number"),
    ("PUT", "/text", {"file": "/etc/x.evalset.json", "version": None, "text": ""}, "outside of the project"),
]


def test_invalid_requests_are_answered(folder: Path) -> None:
    """A request that our page would not make gets a sentence and status 400."""

    async def work(ask: Ask) -> None:
        for method, path, body, message in REQUESTS:
            status, answer = await ask(method, path, **body)
            assert (status, message in answer["error"]) == (400, True), (path, body, answer)

    asking(folder, work)
