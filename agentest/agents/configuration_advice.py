"""Advice for an answer that Agentest cannot use: the likely cause, and the configuration that would fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import anyio

from agentest.agents.error_hints import ProbeResponse, is_page, leads_to_login, wants_tls
from agentest.agents.protocol_probe import (
    DetectedProtocol,
    EndpointProbe,
    all_probes,
    describe_detected,
    detect_type,
    is_login_page,
    is_missing_model_error,
    missing_fields,
    possible_type_hint,
    probe_of,
    settings_line,
    suggest_for_fields,
)
from agentest.support.deadlines import TimeLimit
from agentest.support.redaction import MAX_ERROR_CHARS


def login_advice(response: ProbeResponse) -> str:
    """Return advice for a response that redirects to a login, or is a page with a password field; or ""."""
    if not leads_to_login(response) and not is_login_page(response.body):
        return ""
    return (
        "that looks like a login: send the credentials with `headers`, or log in first by a `setup` request "
        "(type: http)"
    )


_AS_FORM = (
    "`body` has these fields, so the agent reads them from another place: a form takes `headers: "
    "{Content-Type: application/x-www-form-urlencoded}`, a query takes `params` in place of `body`"
)


class Advisor:
    """Gives advice about one agent. Probes its server once, however many conversations fail."""

    def __init__(self, kind: str, probe: EndpointProbe, configured: Collection[str] = ()) -> None:
        """Create an advisor about the configured type. The probe requests make an agent do no work.

        Args:
            configured: the keys of the configured `body`, which are no advice.
        """
        self._kind = kind
        self._configured = configured
        self._endpoint = probe
        self._findings: tuple[DetectedProtocol, ...] | None = None
        self._one_at_a_time = anyio.Lock()
        self.has_answered = False
        """True once the agent has sent a valid response. The configured type is right then, so later errors
        have another cause."""

    async def advised(self, problem: str, response: ProbeResponse) -> str:
        """Return the problem, followed by the configuration that would fit if it can be determined."""
        advice_text = await self.advice(response)
        if not advice_text or ("setup" in advice_text and "setup" in problem):
            return problem
        sentence = f"{advice_text[0].upper()}{advice_text[1:]}"
        if len(problem) + len(sentence) + 2 <= MAX_ERROR_CHARS:
            return f"{problem.removesuffix('.')}. {sentence}"
        return f"{sentence}. {problem}"  # long errors are truncated at the end

    async def advice(self, response: ProbeResponse) -> str:
        """Return advice as a sentence without a full stop, or "" if the answer itself is clear enough."""
        if wants_tls(response.body):
            return "that server speaks TLS: write https:// (or wss://) in the endpoint"
        if (advice := login_advice(response)) or self.has_answered or 300 <= response.status < 400:
            return advice
        detected_type = detect_type(response)
        if detected_type is None:
            return await self._advice_for_unknown(response)
        if detected_type != self._kind:
            finding, probe = None, probe_of(detected_type)
            if probe.at_root:
                with suppress(TimeoutError), TimeLimit(LONGEST_LOOK_S):
                    finding = await probe.find(self._endpoint)
            settings = f"type: {detected_type}" if finding is None else settings_line(finding.settings)
            return f"this looks like {probe.about}: `{settings}`"
        return await self._first_model_advice() if is_missing_model_error(response) else ""

    async def _advice_for_unknown(self, response: ProbeResponse) -> str:
        if response.status in (401, 403):
            return ""
        if probe_of(self._kind).names_model and is_missing_model_error(response):
            return await self._first_model_advice()
        is_elsewhere = response.status in (404, 405, 426) or is_page(response.body)
        detected = await self._probe()
        if at_endpoint := next((each for each in detected if is_at(each, self._endpoint.url)), None):
            # A finding of the configured type helps only if a 422 suggests wrong keys.
            is_of_form = self._kind == "http" and response.status == 422 and self._lacks(at_endpoint.settings)
            is_new = is_of_form or at_endpoint.settings["type"] != self._kind
            return describe_detected(at_endpoint) if is_new else ""
        if detected and is_elsewhere:
            of_kind = next((each for each in detected if each.settings["type"] == self._kind), None)
            if of_kind:
                return describe_detected(of_kind)
            return f"at another path of this server: {describe_detected(detected[0])}"
        missing = missing_fields(response.json)
        lacking = [name for name in missing if name not in self._configured]
        if missing and not lacking:
            return _AS_FORM
        if missing:
            return suggest_for_fields(lacking, add=self._kind == "http" or lacking == ["model"])
        return possible_type_hint(response, self._kind, self._endpoint.url)

    def _lacks(self, settings: Mapping[str, Any]) -> bool:
        body = settings.get("body")
        return not isinstance(body, Mapping) or bool(set(body) - set(self._configured))

    async def _probe(self) -> tuple[DetectedProtocol, ...]:
        async with self._one_at_a_time:
            if self._findings is None:
                self._endpoint.only_gets = True
                self._findings = tuple(await detect_within_limit(self._endpoint, self._kind))
            return self._findings

    async def _first_model_advice(self) -> str:
        response = None
        with suppress(TimeoutError), TimeLimit(LONGEST_LOOK_S):
            response = await self._endpoint.get("/v1/models")
        name = first_model(response.json if response is not None else None)
        return f"its first model is {name}: `body: {{model: {name}}}`" if name else ""


def first_model(listed: Any) -> str:
    """Return the first model of a /v1/models response, or "" if it lists none."""
    match listed:
        case {"data": [{"id": str(name)}, *_]}:
            return name
    return ""


LONGEST_LOOK_S = 5.0


async def detect_within_limit(
    probe: EndpointProbe, first: str = "", limit_s: float = LONGEST_LOOK_S
) -> list[DetectedProtocol]:
    """Return what the probes find within a time limit, up to the first finding at the endpoint.

    The probe of the type `first` runs first.
    """
    detected: list[DetectedProtocol] = []
    with suppress(TimeoutError), TimeLimit(limit_s):
        for each in sorted(all_probes(), key=lambda each: (each.kind != first, each.order)):
            if finding := await each.find(probe):
                detected.append(finding)
                if is_at(finding, probe.url):
                    break
    return detected


def is_at(finding: DetectedProtocol, url: str) -> bool:
    """Return True if a finding is about this exact address, not about another path of its server."""
    there, here = urlsplit(str(finding.settings.get("endpoint", ""))), urlsplit(url)
    return (there.netloc, there.path.rstrip("/")) == (here.netloc, here.path.rstrip("/"))
