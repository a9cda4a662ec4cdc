"""The instructions of agents: what judges are told of an agent, and nobody else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentest.config.agents.base import AnyAgent
from agentest.config.config import Config
from agentest.support.errors import ConfigError
from agentest.support.files import text_file

At = tuple[str | int, ...]
"""Where an agent stands in the configuration."""


def with_instructions(
    config: Config, folder: Path, place: Callable[[At], str] = lambda at: ".".join(map(str, at))
) -> Config:
    """The configuration with the text of every `instructions_file` as its agent's `instructions`.

    Args:
        folder: what the files' paths are relative to.
        place: how an error says where a key stands.

    Raises ConfigError for a file that cannot be read, or that is empty.
    """

    def read(agent: Any, *at: str | int) -> Any:
        if agent.instructions_file is None:
            return agent
        text = _text(folder / agent.instructions_file, place((*at, "instructions_file")))
        return agent.model_copy(update={"instructions": text, "instructions_file": None})

    if not any(agent.instructions_file for agent in _agents(config)):
        return config
    read_in = {
        "agent": read(config.agent, "agent"),
        "agents": {name: read(agent, "agents", name) for name, agent in config.agents.items()},
        "compare": [read(agent, "compare", n) for n, agent in enumerate(config.compare)],
    }
    return config.model_copy(update=read_in)


def _agents(config: Config) -> tuple[AnyAgent, ...]:
    return config.agent, *config.agents.values(), *config.compare


def _text(path: Path, place: str) -> str:
    try:
        return text_file(path)
    except ValueError as error:
        raise ConfigError(f"{place}: {path} {error}; name a text file with what the agent was told") from None
