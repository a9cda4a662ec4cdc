"""Secrets in every spelling, and a search for them in all output of a command."""

from __future__ import annotations

import base64
import html
import json
import subprocess
from urllib.parse import quote, quote_plus

from project import Project, free_port

PASSWORD = 'zq p@ss/"wörd"+91'
KEY = "zq&key=value/92"
ENVIRONMENT = {
    "BOT_PASSWORD": quote(PASSWORD, safe=""),
    "URL_KEY": quote(KEY, safe=""),
    "PLAIN_TOKEN": "zq-plain-93",
}
BASIC = base64.b64encode(f"bot:{PASSWORD}".encode()).decode()
SPELLINGS = [
    spelt
    for secret in (PASSWORD, KEY, *ENVIRONMENT.values(), BASIC)
    for spelt in (secret, quote(secret), quote_plus(secret), json.dumps(secret)[1:-1], html.escape(secret))
]
INPUTS = ("agentest.config.yaml", "agentest.config.py", ".env", ".sim.py", "server.py")


def everything(project: Project, *done: subprocess.CompletedProcess[str]) -> str:
    """All printed and written text."""
    files = [p for p in project.root.rglob("*") if p.is_file() and not p.name.endswith(INPUTS)]
    return "\n".join([d.stdout + d.stderr for d in done] + [p.read_text(errors="replace") for p in files])


def found_in(text: str) -> list[str]:
    return [secret for secret in dict.fromkeys((*SPELLINGS, "zq")) if secret in text]


def with_secrets(endpoint: str) -> str:
    """The endpoint of a configuration that takes secrets from the environment."""
    where = endpoint.replace("://", "://bot:${BOT_PASSWORD}@")
    return f"{where}?page=2&key=${{URL_KEY}}"


def check_unreachable(project: Project, *command: str) -> None:
    """Check that errors about unreachable or refused endpoints show no secret."""
    project.scenario('scenario("s", turns=["x"])')
    project.write("a.test.json", '[{"query": "x", "reference": "y"}]')
    for host in (f"127.0.0.1:{free_port()}", "169.254.169.254"):
        project.config("x", agent={"endpoint": with_secrets(f"http://{host}/chat"), "retries": 0})
        done = project.agentest(*command, env=ENVIRONMENT)
        assert done.returncode == 2
        assert "[redacted]" in done.stderr
        assert found_in(everything(project, done)) == []
