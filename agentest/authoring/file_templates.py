"""Fill in the templates of the files that `agentest init` writes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from agentest.support.terminal import clean

PLACEHOLDER = "http://localhost:8000/v1/chat/completions"
_TEMPLATES = Path(__file__).parent / "templates"
_HEAD = "# The agent under test, and how runs go. Written by `agentest init`.\n"
_CREDENTIALS = """\
  # headers: # variables are those of the environment, or of a file .env beside this one
  #   Authorization: "Bearer ${AGENT_TOKEN}"
"""
_SERVER = """\
  # server: # have the agent started before the first scenario, and ended with the run
  #   command: python my_agent.py
  #   ready: http://localhost:8000/health
"""
_REST = """
# Who plays simulated users, and judges. Without a model runs are offline: no judge is asked, all else counts.
# model: openai/gpt-5-mini # its key, OPENAI_API_KEY, stands in the environment or in .env

# conversations_per_scenario: 3 # of simulated users; scripts run once
# thresholds: {helpfulness: 4, goal_completion: 0.8, pass_rate: 0.9}
strict: true # scenarios whose verdict a warning questions are errored
reporters: [console, json]
"""


def template(name: str) -> str:
    """Return the text of a template."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def demo_config(port: int) -> str:
    """Return a configuration for the demo agent at a local port."""
    origin = f"http://127.0.0.1:{port}"
    server = {"command": f"python demo_agent.py --port {port}", "ready": f"{origin}/health"}
    agent = {"name": "demo", "endpoint": f"{origin}/v1/chat/completions", "server": server}
    return _config_text(agent, (), "")


def found_config(settings: Mapping[str, Any], remarks: tuple[str, ...]) -> str:
    """Return a configuration for a detected agent.

    Args:
        settings: the settings under `agent`. They may come from a server, so `${VAR}` in them is escaped.
        remarks: remarks about the agent, one sentence each.
    """
    return _config_text(_without_variables(settings), remarks, _CREDENTIALS + _SERVER)


def placeholder_config() -> str:
    """Return a configuration with a placeholder URL."""
    remarks = (
        "Write where your agent listens. Where it does not speak chat completions it needs a `type`: with",
        "the agent running, `agentest doctor` looks at what answers there, and says which.",
    )
    return _config_text({"endpoint": PLACEHOLDER}, remarks, _CREDENTIALS + _SERVER)


def github_workflow(folder: PurePosixPath) -> str:
    """Return a GitHub workflow for a project in this folder of its repository; `.` is the root."""
    where = f"defaults:\n      run:\n        working-directory: {_yaml_scalar(str(folder))}"
    return _placed(template("github.yml"), "    # WORKING-DIRECTORY\n", f"    {where}\n", folder)


def gitlab_job(folder: PurePosixPath) -> str:
    """Return a GitLab job for a project in this folder of its repository."""
    where = f"    - {_yaml_scalar(f'cd {shlex.quote(str(folder))}')}\n"
    return _placed(template("gitlab.yml"), "    # WORKING-DIRECTORY\n", where, folder)


def _placed(text: str, mark: str, where: str, folder: PurePosixPath) -> str:
    is_root = str(folder) == "."
    text = text.replace(mark, "" if is_root else where)
    return text.replace("FOLDER", "" if is_root else f"{folder}/")


def _config_text(agent: Mapping[str, Any], remarks: tuple[str, ...], hints: str) -> str:
    """Return a configuration with comments. Each remark is a comment above the agent."""
    comments = "".join(f"# {clean(remark)}\n" for remark in remarks)
    settings = yaml.safe_dump({"agent": dict(agent)}, sort_keys=False, allow_unicode=True, width=1000)
    return f"{_HEAD}{comments}{settings}{hints}{_REST}"


def _without_variables(value: Any) -> Any:
    """Escape `${VAR}` in a value: a server's description must not read the environment."""
    if isinstance(value, Mapping):
        return {key: _without_variables(each) for key, each in value.items()}
    return value.replace("${", "$${") if isinstance(value, str) else value


def _yaml_scalar(text: str) -> str:
    return yaml.safe_dump(text, width=1000).splitlines()[0]
