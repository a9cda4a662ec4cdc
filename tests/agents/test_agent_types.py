"""The table of agent types: everything that is said of a type is said there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest

from agentest.agents.port import AgentReply, Resources, TurnContext
from agentest.config.agent_types import AGENT_TYPES, AgentType, agent_keys, visibility_of_agent
from agentest.config.agents.base import AnyAgent
from agentest.config.config import Config
from agentest.config.file import load
from agentest.domain.messages import Message, UserText
from agentest.domain.tool_visibility import ToolVisibility
from agentest.scenarios.definition import scenario
from agentest.support.errors import ConfigError
from agentest.testing import run_scenarios


class ParrotSettings(AnyAgent):
    """An agent that says what it hears."""

    type: Literal["parrot"]
    cage: str
    password: str = "none"

    @property
    def natural_visibility(self) -> ToolVisibility:
        return ToolVisibility.UNSEEN

    @property
    def secrets(self) -> list[str]:
        return [self.password]

    @property
    def address(self) -> str:
        return f"cage {self.cage}"


@dataclass
class Parrot:
    """The client of such an agent."""

    name: str
    cage: str

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        said = messages[-1]
        assert isinstance(said, UserText)
        return AgentReply(f"{said.text} {self.cage}!")


def open_agent(name: str, config: ParrotSettings, resources: Resources) -> Parrot:
    assert resources.timeout_s > 0
    return Parrot(name, config.cage)


@pytest.fixture
def parrots(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One line of the table and one module, as a further protocol would add them."""
    module = ModuleType("parrot_client")
    module.open_agent = open_agent  # type: ignore[attr-defined]
    module.ParrotSettings = ParrotSettings  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "parrot_client", module)
        line = AgentType(settings="parrot_client:ParrotSettings", client="parrot_client")
        patched.setitem(AGENT_TYPES, "parrot", line)
        Config.model_rebuild(force=True)
        yield
    Config.model_rebuild(force=True)


@pytest.mark.usefixtures("parrots")
def test_a_further_type_is_configured_opened_and_seen() -> None:
    """A line of the table is enough for the configuration, the client and how calls are seen."""
    config = Config.model_validate(
        {"agent": {"type": "parrot", "cage": "A"}, "compare": [{"name": "b", "cage": "B"}]}
    )
    assert isinstance(config.agent, ParrotSettings)
    assert [(type(a), a.address) for a in config.compare] == [(ParrotSettings, "cage B")]
    assert visibility_of_agent(config.agent) is ToolVisibility.UNSEEN
    assert {"cage", "password", "endpoint"} <= agent_keys()
    result = run_scenarios(
        [scenario("talk", turns=["Hello"])], agent={"type": "parrot", "name": "polly", "cage": "A"}
    )
    (conversation,) = result.scenarios[0].conversations
    assert conversation.conversation.turns[0].agent_message == "Hello A!"


@pytest.mark.usefixtures("parrots")
def test_a_further_type_is_checked_and_its_secrets_hidden(tmp_path: Path) -> None:
    """Messages name the keys of the type, and what its line calls secret is hidden."""
    path = tmp_path / "agentest.config.yaml"
    path.write_text("agent:\n  type: parrot\n  cage: A\n  password: peacock\n")
    assert load(path, {}).redact("a peacock") == "a [redacted]"
    path.write_text("agent:\n  type: parrot\n  cage: A\n  endpoint: http://h\n")
    with pytest.raises(ConfigError, match=r"an agent of this type takes `cage`, .*`name`, `password`"):
        load(path, {})
    path.write_text("agent:\n  type: parot\n")
    with pytest.raises(ConfigError, match="no agent type 'parot'; did you mean `parrot`"):
        load(path, {})


def test_the_table_forgets_what_a_test_added() -> None:
    """Without the line there is no such type."""
    with pytest.raises(ValueError, match="parrot"):
        Config.model_validate({"agent": {"type": "parrot", "cage": "A"}})


@pytest.mark.parametrize("name", AGENT_TYPES)
def test_each_line_is_whole(name: str) -> None:
    """The settings of a line have its type's name, and its module can open agents."""
    kind = AGENT_TYPES[name]
    assert name in str(kind.settings_class.model_fields["type"].annotation)
    assert callable(__import__(kind.client, fromlist=["open_agent"]).open_agent)
