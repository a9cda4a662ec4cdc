"""Documents of Swagger 2.0 in the form of OpenAPI 3; what references lead to stays where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_JSON = "application/json"
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_OF_PARAMETER = frozenset({"name", "in", "required", "description", "collectionFormat", "allowEmptyValue"})
_STYLES = {"ssv": "spaceDelimited", "pipes": "pipeDelimited"}


def from_swagger_2(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document in the form of OpenAPI 3."""
    return _Conversion(document).made()


class _Conversion:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def made(self) -> dict[str, Any]:
        paths = self._document.get("paths")
        made = {**self._document, "servers": [{"url": str(self._document.get("basePath") or "/")}]}
        if isinstance(self._document.get("securityDefinitions"), Mapping):
            made["components"] = {"securitySchemes": self._document["securityDefinitions"]}
        if isinstance(paths, Mapping):
            made["paths"] = {path: self._item(item) for path, item in paths.items()}
        return made

    def _item(self, item: Any) -> Any:
        if not isinstance(item, Mapping):
            return item
        shared = self._resolved(item.get("parameters"))
        made = {**item, "parameters": [_parameter(each) for each in shared if _is_plain(each)]}
        for method in _METHODS:
            if isinstance(item.get(method), Mapping):
                made[method] = self._operation(item[method], shared)
        return made

    def _operation(self, operation: Mapping[str, Any], shared: list[Any]) -> dict[str, Any]:
        own = self._resolved(operation.get("parameters"))
        made = {**operation, "parameters": [_parameter(each) for each in own if _is_plain(each)]}
        consumes = _types(operation.get("consumes", self._document.get("consumes")))
        produces = _types(operation.get("produces", self._document.get("produces")))
        body = _body([*own, *shared], consumes)
        if body:
            made["requestBody"] = body
        if isinstance(operation.get("responses"), Mapping):
            responses = operation["responses"].items()
            made["responses"] = {status: self._response(each, produces) for status, each in responses}
        return made

    def _response(self, response: Any, produces: list[str]) -> Any:
        known = self._one(response)
        if not isinstance(known, Mapping) or "schema" not in known:
            return response
        return {**known, "content": {kind: {"schema": known["schema"]} for kind in produces}}

    def _resolved(self, parameters: Any) -> list[Any]:
        return [self._one(each) for each in parameters] if isinstance(parameters, list) else []

    def _one(self, value: Any) -> Any:
        """The value, or what its reference into the same file leads to."""
        ref = value.get("$ref") if isinstance(value, Mapping) else None
        if not isinstance(ref, str) or not ref.startswith("#/"):
            return value
        found: Any = self._document
        for part in ref[2:].split("/"):
            found = (
                found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
            )
        return value if found is None else found


def _is_plain(parameter: Any) -> bool:
    return not (isinstance(parameter, Mapping) and parameter.get("in") in ("body", "formData"))


def _parameter(parameter: Any) -> Any:
    if not isinstance(parameter, Mapping) or "$ref" in parameter:
        return parameter
    kept = {key: parameter[key] for key in ("name", "in", "required") if key in parameter}
    way = parameter.get("collectionFormat", "csv")
    style = {"style": _STYLES[way]} if way in _STYLES else {}
    return {**kept, **style, "explode": way == "multi", "schema": _schema(parameter)}


def _schema(parameter: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parameter.items() if key not in _OF_PARAMETER}


def _body(parameters: list[Any], consumes: list[str]) -> dict[str, Any] | None:
    known = [each for each in parameters if isinstance(each, Mapping)]
    for each in known:
        if each.get("in") == "body":
            content = {kind: {"schema": each.get("schema", {})} for kind in consumes or [_JSON]}
            return {"required": each.get("required") is True, "content": content}
    form = [each for each in known if each.get("in") == "formData"]
    return _form(form, consumes) if form else None


def _form(parameters: list[Mapping[str, Any]], consumes: list[str]) -> dict[str, Any]:
    required = [each.get("name") for each in parameters if each.get("required") is True]
    schema = {
        "type": "object",
        "properties": {str(each.get("name")): _schema(each) for each in parameters},
        **({"required": required} if required else {}),
    }
    file = any(each.get("type") == "file" for each in parameters)
    kinds = [kind for kind in consumes if "form" in kind] or [
        "multipart/form-data" if file else "application/x-www-form-urlencoded"
    ]
    return {"required": bool(required), "content": {kind: {"schema": schema} for kind in kinds}}


def _types(told: Any) -> list[str]:
    return list(_texts(told)) or [_JSON]


def _texts(told: Any) -> Iterator[str]:
    if isinstance(told, list):
        yield from (each for each in told if isinstance(each, str))
