"""Texts in the form of a credential are hidden in all that may leave the machine; results.json has them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from project import Project, clean_environment
from report_file import read_report

from agentest.testing import ScriptedAgent, tool_call

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ6cTA0In0.zqZQzq0443sIgNaTuRe"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nzq13MIIEowIBAAKCAQEA\nzq13row2\n-----END RSA PRIVATE KEY-----"
SAID = {
    "stripe": ("Use sk-live-zq01abcdefghijkl now", "zq01"),
    "google": ("Use AIzaSyzq02abcdefghijklmnopqrstuv now", "zq02"),
    "aws": ("Use AKIAZQ03ABCDEFGHIJKL now", "ZQ03"),
    "jwt": (f"Use {JWT} now", "zq04"),
    "token=": ("https://example.com/in?token=zq05opaque&page=2", "zq05"),
    "password=": ("login with password=zq06geheim", "zq06"),
    "password:": ("Your password: zq07geheim", "zq07"),
    "bearer": ("Authorization: Bearer zq08opaque", "zq08"),
    "basic": ("Authorization: Basic enEwOTp6cTA5", "enEwOTp6cTA5"),
    "github": ("git clone with ghp_zq10abcdefghijklmnop", "zq10"),
    "slack": ("xoxb-zq11-abcdefghijkl", "zq11"),
    "url": ("postgres://app:zq12geheim@db/shop", "zq12"),
    "pem": (PEM, "zq13"),
    "api key": ("api_key: 'zq14opaquevalue'", "zq14"),
    "sendgrid": ("SG.zq15abcdefghijklmn.zq15opqrstuvwxyzabcd", "zq15"),
}
NAMED = {"token": "zq20opaque", "password": "zq21 with spaces", "user": {"apiKey": "zq22opaque"}}
MARKS = [*(mark for _, mark in SAID.values()), "zq20", "zq21", "zq22"]
REPEATED = "I repeat zq20opaque without its name."
REPORTERS = ["console", "json", "junit", "github-actions", "agent", "html"]
SCENARIO = """
import json
from pathlib import Path
said = json.loads(Path(__file__).with_name("said.json").read_text())
for name in said["texts"]:
    scenario(name, turns=[{"user_message": name, "expect": {"contains": "never said"}}],
             tools={"look": lambda args: {"found": [said["texts"], said["named"]]}},
             trajectory={"match_mode": "strict", "expected": [call("look", note="another")]})
"""


def answer(body: Mapping[str, Any]) -> Any:
    last = body["messages"][-1]
    if last["role"] == "user":
        return tool_call("look", note=SAID[str(last["content"])][0])
    asked = next(each["content"] for each in reversed(body["messages"]) if each["role"] == "user")
    return f"{SAID[str(asked)][0]}\n{REPEATED}"


def marks_in(text: str) -> list[str]:
    return [mark for mark in MARKS if mark in text]


@pytest.mark.slow
def test_every_kind_in_every_output(project: Project) -> None:
    """Reports, exports, comparisons and a run by pytest show none; `show --credentials` shows all."""
    root = project.root
    project.write("said.json", json.dumps({"texts": {k: t for k, (t, _) in SAID.items()}, "named": NAMED}))
    project.scenario(SCENARIO)
    with ScriptedAgent(answer) as agent:
        project.config(agent.endpoint, reporters=REPORTERS)
        env = {"GITHUB_STEP_SUMMARY": str(root / "summary.md")}
        done = [project.run("--verbose", env=env), project.run("--workers", "2", "--verbose", env=env)]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--agentest",
            "-vv",
            "--junitxml=pytest.xml",
            "-p",
            "no:xdist",
        ]
        pytests = subprocess.run(
            command, cwd=root, env=clean_environment(), capture_output=True, text=True, check=False
        )
    assert done[0].returncode == 1, done[0].stdout + done[0].stderr
    done += [
        project.agentest("show", "--verbose"),
        project.agentest("compare"),
        project.agentest("compare", "--format", "markdown"),
        project.agentest("compare", "--format", "json"),
    ]
    done += [project.agentest("export", "latest", "--to", form) for form in ("scenario", "yaml", "evalset")]
    files = [root / "summary.md", *root.glob(".agentest/**/junit.xml"), *root.glob("pytest.xml")]
    printed = "".join(each.stdout + each.stderr for each in [*done, pytests])
    assert marks_in(printed) == []
    assert {file.name: marks_in(file.read_text()) for file in files if marks_in(file.read_text())} == {}
    for page in root.glob(".agentest/**/report.html"):
        assert marks_in(json.dumps(read_report(page).data)) == []
    hidden = f"{len(MARKS)} values that look like credentials are hidden"
    for text in (done[0].stdout, files[0].read_text(), files[1].read_text()):
        assert hidden in text
    assert marks_in((root / ".agentest" / "results.json").read_text()) == MARKS
    assert marks_in(project.agentest("show", "--verbose", "--credentials").stdout) == MARKS
