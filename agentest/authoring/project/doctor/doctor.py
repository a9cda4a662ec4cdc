"""Looks at everything that a run needs, in the order in which a run needs it."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping

from agentest.authoring.project.doctor.agents import check_agent, patients
from agentest.authoring.project.doctor.checks import Check, Mark, Tell, bad, left_open
from agentest.authoring.project.doctor.models import ROLES, check_models, resolved
from agentest.authoring.project.doctor.price import check_price
from agentest.authoring.project.doctor.project import (
    check_config,
    check_ignored,
    check_output,
    check_scenarios,
)
from agentest.runner.prepare import CONFIRM, Prepared, Request
from agentest.support.errors import UsageError
from agentest.support.redact import Redactor, environment_secrets


class Findings:
    """What was told so far, without secrets."""

    def __init__(self, tell: Tell, environ: MutableMapping[str, str]) -> None:
        self.bad = 0
        self.redact = Redactor(environment_secrets(environ))
        self._tell = tell

    def __call__(self, check: Check) -> None:
        self.bad += check.mark is Mark.BAD
        text, advice = self.redact(check.text), self.redact(check.advice)
        self._tell(Check(mark=check.mark, name=check.name, text=text, advice=advice))


async def examine(
    request: Request,
    tell: Tell,
    environ: MutableMapping[str, str] = os.environ,
    *,
    say: Callable[[str], object] = lambda _: None,
    expected: Callable[[Prepared], str] = lambda _: "",
) -> int:
    """Look, and tell of each thing as soon as it is known. Returns how many are bad.

    Servers of agents are started and ended; of models that are configured each answers one question, unless
    the request is offline.

    Args:
        say: receives what is waited for when it takes long.
        expected: what a run may take by an earlier one, in words; "" where that is not known.
    """
    findings = Findings(tell, environ)
    loaded = check_config(request, environ, findings)
    if loaded is None:
        findings(left_open("the rest", "was not looked at: it stands in the configuration"))
        return findings.bad
    findings.redact = loaded.redact.knowing(environment_secrets(environ))
    plan = check_scenarios(request, loaded, findings)
    findings(check_output(loaded.config, request.root))
    if ignored := check_ignored(loaded.config, request.root):
        findings(ignored)
    try:
        agents = patients(request, loaded, plan)
    except UsageError as error:
        findings(bad("agent", str(error)))
        agents = []
    for patient in agents:
        await check_agent(patient, request, loaded, findings, say)
    if request.options.offline:
        findings(left_open("model", "not asked: --offline"))
        return findings.bad
    specs = resolved(loaded, request, environ, findings)
    await check_models(specs, findings)
    if plan is not None and specs.keys() >= set(ROLES):
        confirm = specs.get(CONFIRM)
        run = Prepared(request, loaded, plan, (), user=specs["user"], judge=specs["judge"], confirm=confirm)
        findings(check_price(plan, loaded.config, specs, expected(run)))
    return findings.bad
