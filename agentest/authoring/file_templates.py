"""What is written: templates of this package, with what is known filled in."""

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
    """The text of a template."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def demo_config(port: int) -> str:
    """The configuration of the demo's agent, which listens at a port of this machine."""
    origin = f"http://127.0.0.1:{port}"
    server = {"command": f"python demo_agent.py --port {port}", "ready": f"{origin}/health"}
    agent = {"name": "demo", "endpoint": f"{origin}/v1/chat/completions", "server": server}
    return _config(agent, (), "")


def found_config(settings: Mapping[str, Any], remarks: tuple[str, ...]) -> str:
    """The configuration of an agent that was looked at.

    Args:
        settings: what stands under `agent`; others may have written it, and no `${VAR}` of theirs counts.
        remarks: what is to be known of it, each in a sentence.
    """
    return _config(_without_variables(settings), remarks, _CREDENTIALS + _SERVER)


def placeholder_config() -> str:
    """A configuration of which the address is still to be written."""
    remarks = (
        "Write where your agent listens. Where it does not speak chat completions it needs a `type`: with",
        "the agent running, `agentest doctor` looks at what answers there, and says which.",
    )
    return _config({"endpoint": PLACEHOLDER}, remarks, _CREDENTIALS + _SERVER)


def github_workflow(folder: PurePosixPath) -> str:
    """The workflow of a project that is in a folder of its repository, `.` for the repository itself."""
    where = f"defaults:\n      run:\n        working-directory: {_scalar(str(folder))}"
    return _placed(template("github.yml"), "    # WORKING-DIRECTORY\n", f"    {where}\n", folder)


def gitlab_job(folder: PurePosixPath) -> str:
    """The same for GitLab."""
    where = f"    - {_scalar(f'cd {shlex.quote(str(folder))}')}\n"
    return _placed(template("gitlab.yml"), "    # WORKING-DIRECTORY\n", where, folder)


def _placed(text: str, mark: str, where: str, folder: PurePosixPath) -> str:
    is_root = str(folder) == "."
    text = text.replace(mark, "" if is_root else where)
    return text.replace("FOLDER", "" if is_root else f"{folder}/")


def _config(agent: Mapping[str, Any], remarks: tuple[str, ...], hints: str) -> str:
    """A configuration with comments. Remarks stand above the agent, a comment each."""
    comments = "".join(f"# {clean(remark)}\n" for remark in remarks)
    settings = yaml.safe_dump({"agent": dict(agent)}, sort_keys=False, allow_unicode=True, width=1000)
    return f"{_HEAD}{comments}{settings}{hints}{_REST}"


def _without_variables(value: Any) -> Any:
    """The value with `${VAR}` as a text: what a server says of itself must not read the environment."""
    if isinstance(value, Mapping):
        return {key: _without_variables(each) for key, each in value.items()}
    return value.replace("${", "$${") if isinstance(value, str) else value


def _scalar(text: str) -> str:
    """A text as one YAML value on a line."""
    return yaml.safe_dump(text, width=1000).splitlines()[0]
