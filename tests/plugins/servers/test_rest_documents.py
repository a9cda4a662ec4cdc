"""OpenAPI documents: parsing and errors."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from openapi_documents import (
    ORDER,
    SHOP,
    answers,
    api_of,
    document,
    large_document,
    operation,
    parameter,
    written,
)

from agentest.plugins.servers.rest.document import Document
from agentest.plugins.servers.rest.operations import Api, Operation, operation_specs, read_api
from agentest.plugins.servers.rest.request_reader import Routes, ToolHttpRequest, read_request
from agentest.plugins.servers.rest.server import ToolHttpResponse, misfits
from agentest.support.errors import ConfigError

YAML = """\
openapi: 3.0.3
info: {title: shop, version: 2026-01-01}
paths:
  /orders/{id}:
    get:
      operationId: get_order
      parameters:
        - {name: id, in: path, required: true, schema: {type: integer}}
        - {name: status, in: query, schema: {type: string, enum: [on, no]}}
      responses:
        200: {description: ok}
"""


def one(folder: Path, value: Any, name: str = "shop.json") -> Operation:
    return api_of(folder, value, name).operations[0]


def body_problems(one: Operation, body: str) -> str | None:
    asked = ToolHttpRequest(
        query=(), headers={"content-type": "application/json"}, body=body.encode(), values={}
    )
    return read_request(one, asked, frozenset()).problem


def test_yaml_is_read_as_openapi_requires(tmp_path: Path) -> None:
    """A status is text, `on` and `no` are not booleans, and a date is text."""
    operation = one(tmp_path, YAML, "shop.yaml")
    assert operation.tool == "get_order"
    assert list(operation.interface().answers) == ["200"]
    fits = ToolHttpRequest(query=[("status", "no")], headers={}, body=b"", values={"id": "3"})
    read = read_request(operation, fits, frozenset())
    assert (read.arguments, read.problem) == ({"id": 3, "status": "no"}, None)


def test_references_to_other_files_and_cycles(tmp_path: Path) -> None:
    """Schemas, parameters and paths may be in other files; a schema may contain itself."""
    tree = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/Tree"}},
        },
    }
    written(tmp_path, {"Tree": tree, "Id": parameter("id", "path", "integer")}, "my models/all.json")
    path = {
        "parameters": [{"$ref": "all.json#/Id"}],
        "put": operation("grow", body={"$ref": "all.json#/Tree"}),
    }
    written(tmp_path, path, "my models/path.json")
    grow = one(tmp_path, document({"/trees/{id}": {"$ref": "my models/path.json"}}))
    assert [(p.name, p.where) for p in grow.interface().parameters] == [("id", "path")]
    asked = ToolHttpRequest(
        query=(), headers={}, body=b'{"name": "a", "children": [{"name": 1}]}', values={"id": "7"}
    )
    assert read_request(grow, asked, frozenset()).problem == "body `children[0].name`: is 1, expected string"


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
def test_schemas_of_both_dialects(version: str, tmp_path: Path) -> None:
    """`nullable` and `exclusiveMinimum: true` are those of 3.0, a list of types is that of 3.1."""
    old = {"type": "integer", "nullable": True, "minimum": 3, "exclusiveMinimum": True}
    new = {"type": ["integer", "null"], "exclusiveMinimum": 3}
    schema = old if version.startswith("3.0") else new
    buy = one(
        tmp_path, document({"/": {"post": operation("buy", body={"properties": {"n": schema}})}}, version)
    )
    problems = [body_problems(buy, f'{{"n": {n}}}') for n in ("null", "4", "3", '"4"')]
    assert [bool(problem) for problem in problems] == [False, False, True, True]
    assert "expected integer or null" in str(problems[-1])


def test_patterns_as_javascript_writes_them(tmp_path: Path) -> None:
    """Slashes around a pattern and flags behind it are not part of it; slashes of a path are."""
    schema = {"properties": {"n": {"pattern": "/^ab$/i"}, "path": {"pattern": "^/a/$"}}}
    buy = one(tmp_path, document({"/": {"post": operation("buy", body=schema)}}))
    bodies = ('{"n": "AB"}', '{"n": "abc"}', '{"path": "/a/"}', '{"path": "a"}')
    assert [bool(body_problems(buy, body)) for body in bodies] == [False, True, False, True]


def test_nullable_references_of_3_0(tmp_path: Path) -> None:
    """A reference with `nullable` next to it may be null, too."""
    schema = {"properties": {"order": {"$ref": "#/components/schemas/Order", "nullable": True}}}
    told = document(
        {"/": {"post": operation("buy", body=schema)}}, "3.0.0", components={"schemas": {"Order": ORDER}}
    )
    buy = one(tmp_path, told)
    problems = [body_problems(buy, f'{{"order": {order}}}') for order in ("null", '{"item": "tea"}', "{}")]
    assert [bool(problem) for problem in problems] == [False, False, True]


def test_properties_of_one_direction(tmp_path: Path) -> None:
    """`readOnly` properties are optional in requests, `writeOnly` ones in answers."""
    user = {
        "required": ["id", "name", "password"],
        "properties": {"id": {"readOnly": True}, "name": {}, "password": {"writeOnly": True}},
    }
    told = operation("add", body=user, **answers("201", user))
    add = one(tmp_path, document({"/": {"post": told}}))
    assert body_problems(add, '{"name": "Ann"}') == "body: lacks `password`"
    answer = ToolHttpResponse(status=201)
    assert misfits(add, answer, {"id": 1, "name": "Ann"}) is None
    assert misfits(add, answer, {"name": "Ann"}) == "body: lacks `id`"


SWAGGER = {
    "swagger": "2.0",
    "basePath": "/v2",
    "consumes": ["application/json"],
    "paths": {
        "/pets/{id}": {
            "parameters": [{"$ref": "#/parameters/Id"}],
            "put": {
                "operationId": "change",
                "parameters": [
                    {"name": "tags", "in": "query", "type": "array", "items": {"type": "integer"}},
                    {"name": "pet", "in": "body", "required": True, "schema": {"$ref": "#/definitions/Pet"}},
                ],
                "responses": {"202": {"description": "", "schema": {"type": "object"}}},
            },
            "post": {
                "operationId": "paint",
                "parameters": [{"name": "colour", "in": "formData", "type": "string", "required": True}],
            },
        }
    },
    "parameters": {"Id": {"name": "id", "in": "path", "required": True, "type": "integer"}},
    "definitions": {
        "Pet": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
    },
}


def test_swagger_2(tmp_path: Path) -> None:
    """Its bodies, forms, lists and references are those of OpenAPI 3."""
    api = api_of(tmp_path, SWAGGER)
    change, paint = api.operations
    assert api.bases == ("/v2",)
    asked = ToolHttpRequest(query=[("tags", "1,2")], headers={}, body=b'{"name": "Rex"}', values={"id": "7"})
    read = read_request(change, asked, frozenset())
    assert (read.arguments, read.problem) == ({"id": 7, "tags": [1, 2], "name": "Rex"}, None)
    assert list(change.interface().answers["202"].kinds) == ["application/json"]
    form = {"content-type": "application/x-www-form-urlencoded"}
    painted = read_request(
        paint, ToolHttpRequest(query=(), headers=form, body=b"colour=red", values={"id": "7"}), frozenset()
    )
    assert painted.arguments == {"id": 7, "colour": "red"}
    assert body_problems(change, "{}") == "path `id`: is missing; body: lacks `name`"


FORM = "application/x-www-form-urlencoded"
LISTS = {
    "multi": "t=1&t=2",
    "csv": "t=1,2",
    "ssv": "t=1+2",
    "tsv": "t=1%092",
    "pipes": "t=1|2",
    None: "t=1,2",
}


def read_form(one: Operation, body: str) -> tuple[Any, str | None]:
    asked = ToolHttpRequest(query=(), headers={"content-type": FORM}, body=body.encode(), values={})
    read = read_request(one, asked, frozenset())
    return read.arguments.get("t"), read.problem


@pytest.mark.parametrize("how", LISTS)
def test_lists_in_one_value_in_swagger(how: str | None, tmp_path: Path) -> None:
    """A field has all items of a list, except with the format `multi`."""
    t = {"name": "t", "in": "formData", "type": "array", "items": {"type": "integer"}}
    add = operation("add", {**t, **({"collectionFormat": how} if how else {})})
    swagger = {"swagger": "2.0", "paths": {"/a": {"post": add}}}
    assert read_form(one(tmp_path, swagger), LISTS[how]) == ([1, 2], None)
    find = operation("find", {**add["parameters"][0], "in": "query"})
    swagger = {"swagger": "2.0", "paths": {"/a": {"get": find}}}
    asked = ToolHttpRequest(query=parse_qsl(LISTS[how]), headers={}, body=b"", values={})
    assert read_request(one(tmp_path, swagger), asked, frozenset()).arguments == {"t": [1, 2]}


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ({"explode": False}, "t=1,2"),
        ({"style": "pipeDelimited"}, "t=1|2"),
        ({"style": "spaceDelimited", "explode": False}, "t=1%202"),
        ({"style": "pipeDelimited", "explode": True}, "t=1&t=2"),
        ({"contentType": "text/plain"}, "t=1&t=2"),
    ],
)
def test_lists_in_a_field_of_a_form(encoding: dict[str, Any], body: str, tmp_path: Path) -> None:
    """The field's `encoding` says whether one field has all items of a list."""
    items = {"type": "array", "items": {"type": "integer"}}
    media = {"schema": {"type": "object", "properties": {"t": items}}, "encoding": {"t": encoding}}
    add = {**operation("add"), "requestBody": {"content": {FORM: media}}}
    assert read_form(one(tmp_path, document({"/a": {"post": add}})), body) == ([1, 2], None)


NAMES = {
    "get /orders/{id}": "get_orders_by_id",
    "get /orders/{id}/items.json": "get_orders_by_id_items_json",
    "post /": "post_root",
    "delete /a-b/{x}{y}": "delete_a_b_by_x_by_y",
}


@pytest.mark.parametrize("asked", NAMES)
def test_names_of_operations_without_an_id(asked: str, tmp_path: Path) -> None:
    """Method and path make a name."""
    method, path = asked.split()
    inside = [name.partition("}")[0] for name in path.split("{")[1:]]
    told = operation(None, *(parameter(name, "path") for name in inside))
    assert one(tmp_path, document({path: {method: told}})).tool == NAMES[asked]


def test_names_that_fastapi_makes(tmp_path: Path) -> None:
    """Mocks and trajectories may use the function's name of an operation if it is unique."""
    order = operation("get_order_orders__id__get", parameter("id", "path"))
    api = api_of(tmp_path, document({"/orders/{id}": {"get": order}}))
    for mocks, name in (
        ([], order["operationId"]),
        (["get_order"], "get_order"),
        (["x"], order["operationId"]),
    ):
        assert [each.tool for each in api.named_as(mocks).operations] == [name]
    both = api.named_as(["get_order", order["operationId"]])
    assert both.operations[0].tool == order["operationId"]
    for mocks, spoken, name in (
        ([], ["get_order"], "get_order"),
        ([], ["get_order", order["operationId"]], order["operationId"]),
        ([order["operationId"]], ["get_order"], order["operationId"]),
        (["get_order"], [order["operationId"]], "get_order"),
    ):
        assert [each.tool for each in api.named_as(mocks, spoken).operations] == [name]


def with_operation(**more: Any) -> dict[str, Any]:
    return document({"/orders": {"get": {"operationId": "list", **more}}})


def with_schema(schema: Any) -> dict[str, Any]:
    return with_operation(parameters=[parameter("a", kind=schema)])


BAD: dict[str, tuple[Any, str]] = {
    "no document": ("Order tea\n", "shop.yaml: is not an OpenAPI document: expected the key `openapi`"),
    "empty": ("# nothing\n", "shop.yaml: is empty"),
    "another format": ({"postwoman": "2.0"}, "found keys postwoman"),
    "AsyncAPI": ({"asyncapi": "2.0"}, "shop.yaml: is an AsyncAPI document; expected the API's document in"),
    "AsyncAPI in YAML": ("asyncapi: 3.0.0\ninfo: {}\n", "is an AsyncAPI document"),
    "a collection": ({"info": {"_postman_id": "1", "name": "Shop"}, "item": []}, "is a Postman collection"),
    "recorded requests": ({"log": {"version": "1.2", "entries": []}}, "is a HAR file"),
    "a GraphQL schema": ("""type Query {\n  order(id: ID!): Order\n}\n""", "is a GraphQL schema"),
    "a described GraphQL schema": (
        '"""\nA shop: all of it\n"""\ntype Query {\n  a: Int\n}\n',
        "is a GraphQL schema",
    ),
    "a web page": ("<!DOCTYPE html>\n<html><body>API</body></html>\n", "is a web page"),
    "a JSON Schema": ({"$schema": "https://json-schema.org/draft/2020-12/schema"}, "is a JSON Schema"),
    "a new version": ({"openapi": "4.0"}, "OpenAPI 4.0 is not known"),
    "broken YAML": ("openapi: 3.1.0\npaths: [\n", "shop.yaml:3: the YAML does not parse"),
    "a control character": ("openapi: \x1f\n", "shop.yaml: the YAML does not parse"),
    "a tag": ("openapi: !include x\n", "shop.yaml:1: the YAML does not parse: could not determine"),
    "a key twice": (
        "openapi: 3.1.0\npaths:\n  /a: {}\n  /a: {}\n",
        "shop.yaml:4: the YAML does not parse: the key '/a' is given twice",
    ),
    "itself inside": ("openapi: 3.1.0\npaths: &a {b: *a}\n", "contains itself"),
    "no operation": (document({}), "has no operation"),
    "no paths": ({"openapi": "3.0.0"}, "the key `paths` is missing"),
    "a path without slash": (document({"orders": {}}), "the path 'orders' does not begin with `/`"),
    "paths as a list": (document({}) | {"paths": []}, "paths: expected keys and values, found list"),
    "an operation as text": (document({"/a": {"get": "x"}}), "expected an operation, found str"),
    "an unknown reference": (
        with_schema({"$ref": "#/components/schemas/Ordr"}) | {"components": {"schemas": {"Order": ORDER}}},
        "`$ref` '#/components/schemas/Ordr' leads nowhere: there is no 'Ordr'; did you mean `Order`?",
    ),
    "a missing file": (
        with_schema({"$ref": "shup.yaml#/A"}),
        "there is no such file; did you mean shop.yaml?",
    ),
    "a reference to the network": (
        with_schema({"$ref": "https://x.example/a"}),
        "documents are never fetched",
    ),
    "a reference by name": (
        with_schema({"$ref": "#order"}),
        "expected a path like #/components/schemas/Order",
    ),
    "a circle of references": (
        with_schema({"$ref": "#/components/schemas/A"})
        | {"components": {"schemas": {"A": {"$ref": "#/components/schemas/A"}}}},
        "leads back to itself",
    ),
    "a circle of references to properties": (
        with_schema({"$ref": "#/components/schemas/A"})
        | {"components": {"schemas": {"A": {"properties": {"$ref": "#/components/schemas/A/properties"}}}}},
        "components.schemas.A.properties: the reference leads back to itself",
    ),
    "one id twice": (
        document({"/a": {"get": operation("list")}, "/b": {"post": operation("list")}}),
        "paths./b.post.operationId: 'list' is the id of GET /a, too",
    ),
    "an id that is not a text": (with_operation(operationId=3), "expected a text, found 3"),
    "a parameter without a name": (
        with_operation(parameters=[{"in": "query"}]),
        "a parameter needs a `name`",
    ),
    "a parameter nowhere": (
        with_operation(parameters=[{"name": "a", "in": "body"}]),
        "`in` is 'body', expected",
    ),
    "an unknown style": (
        with_operation(parameters=[parameter("a", style="tabs")]),
        "there is no style 'tabs'",
    ),
    "a path without its parameter": (
        document({"/orders/{id}": {"get": operation("a")}}),
        "the path has {id}, and no parameter `id` with `in: path`",
    ),
    "parameters as keys": (with_operation(parameters={"a": 1}), "parameters: expected a list, found dict"),
    "a body without content": (with_operation(requestBody={}), "a body needs `content`"),
    "an unknown type": (
        with_schema({"type": "strnig"}),
        "parameters[0].schema.type: there is no type 'strnig'",
    ),
    "a deep unknown type": (with_schema({"anyOf": [{"items": {"type": "int"}}]}), "there is no type 'int'"),
    "a dynamic reference": (
        with_schema({"items": {"$dynamicRef": "#node"}}),
        "parameters[0].schema.items.$dynamicRef: is not supported; write `$ref` with a path:",
    ),
    "a required text": (with_schema({"required": "a"}), "required: expected a list, found str"),
    "a minimum as text": (with_schema({"minimum": "3"}), "minimum: expected a number, found '3'"),
    "a schema as list": (with_schema({"properties": {"a": []}}), "expected a schema, found list"),
}


@pytest.mark.parametrize("what", BAD)
def test_documents_with_errors(what: str, tmp_path: Path) -> None:
    """One message has the file, the place in it, and the problem."""
    value, expected = BAD[what]
    with pytest.raises(ConfigError) as caught:
        api_of(tmp_path, value, "shop.yaml")
    assert expected in str(caught.value)
    assert "shop.yaml" in str(caught.value)


ODD: dict[str, Any] = {
    "a lost reference": {"$ref": "#/components/schemas/Lost"},
    "an odd item": {"type": "array", "items": ["string"]},
    "properties elsewhere": {"properties": {"$ref": "#/components/schemas/Lost/properties"}},
    "an odd type deep inside": {"anyOf": [{"properties": {"a": {"type": "int"}}}]},
    "a file that is missing": {"$ref": "other.yaml#/A"},
}


@pytest.mark.parametrize("what", ODD)
def test_what_no_scenario_needs_is_noted(what: str, tmp_path: Path) -> None:
    """A schema that nothing uses is not read, and one of an operation that no mock names is noted."""
    odd = operation("odd", parameter("a", kind=ODD[what]))
    value = document(
        {
            "/odd": {"post": odd},
            "/orders/{id}": {"get": operation("get", parameter("id", "path", "integer"))},
        },
        components={"schemas": {"Odd": ODD[what]}},
    )
    api = read_api(Document(written(tmp_path, value)))
    api.check({"get"})
    assert [(each.tool, len(each.interface().parameters)) for each in api.operations] == [
        ("odd", 0),
        ("get", 1),
    ]
    [problem] = api.problems
    assert "shop.json:" in problem.text
    assert "paths./odd.post" in problem.text
    for name in ("odd", "POST /odd", "post_odd"):
        with pytest.raises(ConfigError):
            api.check({name})
    value["paths"].pop("/odd")
    assert read_api(Document(written(tmp_path, value))).problems == ()


@pytest.mark.parametrize("ending", ["", "_b_delete"])
def test_an_id_given_twice_is_an_error_if_a_scenario_names_it(ending: str, tmp_path: Path) -> None:
    """Otherwise, the second operation gets a name of its own."""
    id = f"getOrder{ending}"
    paths = {"/a": {"get": operation(id)}, "/b": {"delete": operation(id)}, "/c": {"get": operation("c")}}
    api = read_api(Document(written(tmp_path, document(paths))))
    for name in ("getOrder", id, "DELETE /b", "delete_b"):
        with pytest.raises(ConfigError, match="is the id of GET /a, too"):
            api.check({name})
    api.check({"c"})
    assert [each.tool for each in api.operations] == [id, "delete_b", "c"]


def test_a_reference_in_place_of_properties(tmp_path: Path) -> None:
    """It stands for all of them."""
    schemas = {
        "Props": {"a": {"type": "integer"}},
        "All": {"properties": {"$ref": "#/components/schemas/Props"}},
    }
    paths = {"/a": {"post": operation("a", body={"$ref": "#/components/schemas/All"})}}
    api = api_of(tmp_path, document(paths, components={"schemas": schemas}))
    [made] = api.operations
    assert made.interface().body is not None
    [schema] = made.interface().body.kinds.values()
    assert schema is not None
    assert schema.properties == ("a",)
    assert "file:" not in str(api.document.root.value)  # agents may be given the document
    assert [str(each) for each in schema.problems({"a": "x"}, "body")] == [
        'body `a`: is "x", expected integer'
    ]


def test_properties_of_each_other(tmp_path: Path) -> None:
    """Objects may contain each other, also by references in place of properties."""
    schemas = {
        "A": {"properties": {"$ref": "#/components/schemas/B/properties"}, "additionalProperties": False},
        "B": {
            "properties": {
                "a": {"properties": {"$ref": "#/components/schemas/A/properties"}, "type": "object"}
            }
        },
    }
    paths = {"/a": {"post": operation("a", body={"$ref": "#/components/schemas/A"})}}
    buy = one(tmp_path, document(paths, components={"schemas": schemas}))
    bodies = ("{}", '{"a": {"a": {}}}', '{"a": {"a": 3}}', '{"b": 3}')
    assert [bool(body_problems(buy, body)) for body in bodies] == [False, False, True, True]


@pytest.mark.parametrize("word", ["oneOf", "anyOf"])
@pytest.mark.parametrize(
    ("mapping", "body", "problem"),
    [
        ({"cat": "#/components/schemas/Cat", "dog": "Dog"}, '{"kind": "cat", "lives": 9}', None),
        ({"cat": "#/components/schemas/Cat", "dog": "Dog"}, '{"kind": "dog"}', None),
        (None, '{"kind": "Cat", "lives": 9}', None),
        (None, '{"kind": "Cat", "lives": "x"}', 'body `lives`: is "x", expected integer'),
        (None, '{"kind": "Cow"}', 'body `kind`: is "Cow", expected one of ["Cat", "Dog"]'),
        ({"cat": "Cat"}, '{"kind": "cow"}', 'body `kind`: is "cow", expected one of ["cat"]'),
        ({"cat": "#/components/schemas/Gone"}, '{"kind": "cat", "lives": 9, "legs": "x"}', None),
        ({"cat": {"oneOf": []}}, '{"kind": "cat", "lives": 9, "legs": "x"}', None),
    ],
)
def test_a_discriminator_chooses_the_form(
    word: str, mapping: Any, body: str, problem: str | None, tmp_path: Path
) -> None:
    """Only the form that the property names counts, although values fit several; without one, all count."""
    forms = {"Cat": {"lives": {"type": "integer"}}, "Dog": {"legs": {"type": "integer"}}}
    schemas = {
        name: {"type": "object", "properties": {"kind": {"type": "string"}, **more}}
        for name, more in forms.items()
    }
    rule = {"propertyName": "kind", **({"mapping": mapping} if mapping else {})}
    pet = {word: [{"$ref": f"#/components/schemas/{name}"} for name in forms], "discriminator": rule}
    add = document({"/pets": {"post": operation("add", body=pet)}}, components={"schemas": schemas})
    assert body_problems(one(tmp_path, add), body) == problem


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
def test_words_beside_a_reference(version: str, tmp_path: Path) -> None:
    """From 3.1 on, they are checked, and they give the types of values."""

    def api(more: dict[str, Any]) -> Api:
        pet = {"$ref": "#/components/schemas/Pet", **more}
        get = operation("find", parameters=[{"name": "pet", "in": "query", "schema": pet}])
        paths = {"/pets": {"post": operation("add", body=pet), "get": get}}
        made = document(paths, components={"schemas": {"Pet": {"type": "object"}}})
        return api_of(tmp_path, {**made, "openapi": version})

    add = {each.tool: each for each in api({"properties": {"age": {"type": "integer"}}}).operations}["add"]
    is_ignored = version == "3.0.3"
    assert body_problems(add, '{"age": 3}') is None
    assert (body_problems(add, '{"age": "x"}') is None) == is_ignored
    body = add.interface().body
    assert body
    assert [each and each.properties for each in body.kinds.values()] == [() if is_ignored else ("age",)]
    with nullcontext() if is_ignored else pytest.raises(ConfigError, match="expected a list"):
        api({"required": 5})


def test_words_of_older_drafts(tmp_path: Path) -> None:
    """A list of `items` has a schema for each place; `required: true` of a property is ignored."""
    pair = {"type": "array", "items": [{"type": "integer", "required": True}, {"type": "string"}]}
    buy = one(tmp_path, document({"/": {"post": operation("buy", body={"properties": {"pair": pair}})}}))
    bodies = ('{"pair": [1, "a"]}', '{"pair": []}', '{"pair": ["a", "b"]}')
    assert [bool(body_problems(buy, body)) for body in bodies] == [False, False, True]


PARTS = {
    "api/shop.yaml": """
swagger: "2.0"
produces: [text/csv]
paths:
  /pets/{id}:
    $ref: "paths.json#/~1pets~1%7Bid%7D"
  /lost:
    $ref: paths.json#/~1lost
""",
    "api/paths.json": {
        "/pets/{id}": {
            "parameters": [{"$ref": "../common/parts.yaml#/parameters/Id"}],
            "put": {
                "operationId": "change",
                "parameters": [
                    {"$ref": "../common/parts.yaml#/parameters/Tags"},
                    {"$ref": "../common/parts.yaml#/parameters/Pet"},
                ],
                "responses": {"200": {"$ref": "../common/parts.yaml#/responses/Pet"}},
            },
            "post": {
                "operationId": "paint",
                "parameters": [{"$ref": "../common/parts.yaml#/parameters/Colour"}],
            },
        }
    },
    "common/parts.yaml": """
parameters:
  Id: {name: id, in: path, required: true, type: integer, maximum: 9, exclusiveMaximum: true}
  Tags: {name: tags, in: query, type: array, collectionFormat: pipes, items: {$ref: "#/ids"}}
  Pet: {name: pet, in: body, required: true, schema: {$ref: my pet.json}}
  Colour: {name: colour, in: formData, type: string, required: true, enum: [red]}
ids: {$ref: "my pet.json#/properties/id"}
responses:
  Pet: {description: "", schema: {$ref: my%20pet.json}}
""",
    "common/my pet.json": {
        "type": "object",
        "required": ["id"],
        "properties": {"id": {"type": "integer"}, "mother": {"$ref": "my pet.json"}},
    },
}


def test_a_swagger_document_of_many_files(tmp_path: Path) -> None:
    """Paths, parameters, bodies and responses may be in other files, and refer to theirs."""
    for name, value in PARTS.items():
        written(tmp_path, value, name)
    api = read_api(Document(tmp_path / "api/shop.yaml"))
    change, paint = api.operations
    [lost] = api.problems
    assert (
        "shop.yaml:7: paths./lost: `$ref` 'paths.json#/~1lost' leads nowhere: there is no '/lost'"
        in lost.text
    )
    assert {"GET /lost", "PUT /lost"} <= lost.names
    tagged = ToolHttpRequest(query=[("tags", "1|2")], headers={}, body=b'{"id": 3}', values={"id": "7"})
    read = read_request(change, tagged, frozenset())
    assert (read.arguments, read.problem) == ({"id": 7, "tags": [1, 2], "body_id": 3}, None)
    nested = ToolHttpRequest(query=(), headers={}, body=b'{"id": 3, "mother": {}}', values={"id": "9"})
    problem = read_request(change, nested, frozenset()).problem
    assert problem is not None
    assert "path `id`: 9 is " in problem
    assert "body `mother`: lacks `id`" in problem
    form = {"content-type": "application/x-www-form-urlencoded"}
    painted = ToolHttpRequest(query=(), headers=form, body=b"colour=blue", values={"id": "7"})
    assert "expected one of" in str(read_request(paint, painted, frozenset()).problem)
    assert list(change.interface().answers["200"].kinds) == ["text/csv"]


def test_a_large_document_is_parsed_and_checked_once(tmp_path: Path) -> None:
    """A later run takes what was stored, until a file changes. A damaged or foreign store is made anew."""
    outputs, value = tmp_path / "out", large_document(100)
    value["paths"]["/odd"] = {"get": operation("odd", {"$ref": "more.yaml#/Odd"})}
    value["paths"]["/lost"] = {"get": operation("lost", {"$ref": "lost.yaml#/Lost"})}
    path, more = written(tmp_path, value), written(tmp_path, "Odd: {name: odd, in: odd}\n", "more.yaml")

    def opened(is_checked: bool) -> Api:
        document = Document(path, outputs)
        assert document.is_checked is is_checked
        return read_api(document)

    first, second = opened(False), opened(True)
    assert len(first.operations) == 102
    assert second.problems == first.problems
    assert [each.tool for each in second.operations] == [each.tool for each in first.operations]
    assert (
        body_problems(second.operations[5], '{"before": {"field1": 3}}')
        == "path `name`: is missing; body `before.field1`: is 3, expected string"
    )
    [file] = (outputs / "cache/openapi").iterdir()
    assert outputs.stat().st_mode & 0o077 == 0
    content = file.read_bytes()
    for damaged in (content[:-9], content.replace(b"string", b"number"), b"", b"\xff\n[]", b"{}"):
        file.write_bytes(damaged)
        opened(False)
        opened(True)
    other = Document(written(tmp_path, value, "copy.json"), outputs)
    read_api(other)
    [foreign] = set(file.parent.iterdir()) - {file}
    file.write_bytes(foreign.read_bytes())
    opened(False)
    more.write_text("Odd: {name: odd, in: query}\n")
    assert len(opened(False).problems) == 1
    written(tmp_path, "Lost: {name: lost, in: query}\n", "lost.yaml")
    assert opened(False).problems == ()


def test_a_stored_document_is_read_as_far_as_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tools are stored with their arguments, and an operation is read when a request reaches it."""
    path, outputs = written(tmp_path, large_document(50)), tmp_path / "out"
    first = read_api(Document(path, outputs))
    followed: list[str] = []
    follow = Document.follow
    monkeypatch.setattr(Document, "follow", lambda *args: [followed.append(""), follow(*args)][1])
    second = read_api(Document(path, outputs))
    assert list(operation_specs(second, (), ())) == list(operation_specs(first, (), ()))
    assert len(followed) < 50 * 8
    assert body_problems(second.operations[7], '{"field1": 3}') is not None
    assert second.operations[7].interface() is second.named_as(()).operations[7].interface()


def test_an_error_has_its_line(tmp_path: Path) -> None:
    """The line is that of the key, in YAML and in JSON."""
    with pytest.raises(ConfigError, match=r"shop.yaml:8: paths./orders/\{id\}.get.parameters\[0\]"):
        api_of(tmp_path, YAML.replace("in: path", "in: pth"), "shop.yaml")
    with pytest.raises(ConfigError, match=r"shop.json:\d+: paths./b.get.operationId"):
        api_of(tmp_path, document({"/a": {"get": operation("x")}, "/b": {"get": operation("x")}}))


ROUTES = {
    "/orders/mine": ("mine", {}),
    "/orders/7": ("get", {"id": "7"}),
    "/v1/orders/7": ("get", {"id": "7"}),
    "/orders/a%2Fb%20c": ("get", {"id": "a/b c"}),
    "/orders/7/": ("get", {"id": "7"}),
    "//orders//7": ("get", {"id": "7"}),
    "/orders/7.json": ("json", {"id": "7"}),
    "/c/0123456789abcdef01234567/orders/7": ("get", {"id": "7"}),
    "/c/agentest-1/v1/orders/7": ("get", {"id": "7"}),
    "/c/7": ("card", {"id": "7"}),
    "/orders/": (None, {}),
    "/order/7": (None, {}),
}


@pytest.mark.parametrize("path", ROUTES)
def test_the_most_specific_path_counts(path: str, tmp_path: Path) -> None:
    """Written-out parts win over parameters; base path, conversation and slashes at the end do not count."""
    inside = parameter("id", "path")
    paths = {
        "/orders/{id}": {"get": operation("get", inside)},
        "/orders/{id}.json": {"get": operation("json", inside)},
        "/orders/mine": {"get": operation("mine")},
        "/c/{id}": {"get": operation("card", inside)},
    }
    servers = [{"url": "https://{host}.example/{v}", "variables": {"v": {"default": "v1"}}}]
    found = Routes(api_of(tmp_path, document(paths, servers=servers))).find("GET", path)
    assert (found.operation.tool if found.operation else None, dict(found.values)) == ROUTES[path]


def test_the_bases_of_all_servers_are_known(tmp_path: Path) -> None:
    """A path and an operation have servers of their own, and a variable has several values, some of hosts."""
    version = {"default": "v1", "enum": ["v1", "v2"]}
    regions = [f"r{number}" for number in range(2000)]
    variables = {"v": version, "region": {"default": "r0", "enum": regions}, "odd": {"enum": 3}}
    paths = {
        "/orders": {
            "servers": [{"url": "https://orders.example/shop"}],
            "get": {**operation("find"), "servers": [{"url": "/search"}]},
        }
    }
    root = {"url": "https://{region}.example/{v}", "variables": variables}
    routes = Routes(api_of(tmp_path, document(paths, servers=[root])))
    known = ["", "/v1", "/v2", "/shop", "/search"]
    found = {base: routes.find("GET", f"{base}/orders").operation for base in [*known, "/v3"]}
    assert [base for base, each in found.items() if each] == known


def test_methods_and_neighbours(tmp_path: Path) -> None:
    """A known path with another method lists its methods; an unknown path lists similar ones."""
    routes = Routes(api_of(tmp_path, SHOP))
    assert routes.find("PUT", "/orders/7").methods == ("GET", "DELETE")
    assert routes.describe_operations("/order").startswith(
        "the nearest path is /orders; there are POST /orders, "
    )


def test_a_document_of_many_operations(tmp_path: Path) -> None:
    """Each schema is read once, however many operations have it."""
    item = {f"p{i}": {"type": "string"} for i in range(50)}
    paths = {
        f"/a{i}": {"post": operation(f"a{i}", body={"$ref": "#/components/schemas/A"}, **answers("200", {}))}
        for i in range(300)
    }
    api = api_of(tmp_path, document(paths, components={"schemas": {"A": {"properties": item}}}))
    assert len(api.operations) == 300
