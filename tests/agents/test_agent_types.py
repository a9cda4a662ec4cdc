"""Agent types: a plug-in registers everything about a type."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from agentest.agents.error_hints import ProbeResponse
from agentest.agents.port import AgentReply, Resources, TurnContext
from agentest.agents.protocol_probe import detect_type, probe_of
from agentest.config.agent_types import agent_keys, agent_type, settings_class, visibility_of_agent
from agentest.config.agents.base import AnyAgent
from agentest.config.config import Config
from agentest.config.file import load
from agentest.domain.messages import Message, UserText
from agentest.domain.tool_visibility import ToolVisibility
from agentest.plugin import PLUGINS, Plugin, PluginRegistry, core_plugin
from agentest.scenarios.definition import scenario
from agentest.support.errors import ConfigError
from agentest.testing import run_scenarios


class ParrotSettings(AnyAgent):
    """Settings of an agent that repeats messages."""

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
    """Register one feature and one module, as a new protocol would."""
    module = ModuleType("parrot_client")
    module.open_agent = open_agent  # type: ignore[attr-defined]
    module.ParrotSettings = ParrotSettings  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "parrot_client", module)
        plugin = Plugin("parrots")
        plugin.agent_type(
            "parrot",
            settings="parrot_client:ParrotSettings",
            client="parrot_client:open_agent",
            help="a parrot",
            words="bird",
        )
        patched.setitem(PLUGINS._features["agent type"], "parrot", plugin.features[0])
        yield


@pytest.mark.usefixtures("parrots")
def test_a_plugin_adds_an_agent_type() -> None:
    """One feature provides the configuration, the client and the tool visibility."""
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
def test_settings_of_an_added_type_are_checked_and_redacted(tmp_path: Path) -> None:
    """Errors name the keys of the type, and its secret keys are redacted."""
    path = tmp_path / "agentest.config.yaml"
    path.write_text("agent:\n  type: parrot\n  cage: A\n  password: peacock\n")
    assert load(path, {}).redact("a peacock") == "a [redacted]"
    path.write_text("agent:\n  type: parrot\n  cage: A\n  endpoint: http://h\n")
    with pytest.raises(ConfigError, match=r"an agent of this type takes `cage`, .*`name`, `password`"):
        load(path, {})
    path.write_text("agent:\n  type: parot\n")
    with pytest.raises(ConfigError, match="no agent type 'parot'; did you mean `parrot`"):
        load(path, {})
    path.write_text("agent:\n  type: Bird\n")
    with pytest.raises(ConfigError, match=r"no agent type 'Bird'\. .* agent speaks: parrot \(a parrot\)"):
        load(path, {})


@pytest.mark.parametrize(
    "agent",
    [
        {"endpoint": "http://h"},
        {"type": "http", "endpoint": "http://h", "body": {"text": "{{message}}"}},
        {"type": "asgi", "app": "shop:app"},
        {"type": "custom", "handler": "shop:answer"},
    ],
)
def test_types_of_the_core_read_no_plugin(agent: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration, with overrides, reads plug-in sources only up to the one with its type."""

    def unread() -> Iterator[tuple[str, str]]:
        raise AssertionError("a source of plug-ins was read")

    monkeypatch.setattr("agentest.config.agent_types.PLUGINS", PluginRegistry([core_plugin, unread]))
    config = Config.model_validate({"agent": agent, "compare": [{"name": "b", "toolVisibility": None}]})
    assert {config.agent.type, config.compare[0].type} == {agent.get("type", "chat_completions")}


@pytest.mark.usefixtures("parrots")
def test_a_type_that_cannot_be_imported_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other types still work; the problem is reported once, with the plug-in's name."""
    plugin, problems = Plugin("dodos"), list[str]()
    plugin.agent_type("dodo", settings="dodo:Settings", client="dodo:open", probe="dodo:Probe", help="a dodo")
    monkeypatch.setitem(PLUGINS._features["agent type"], "dodo", plugin.features[0])
    monkeypatch.setattr(PLUGINS, "problems", problems)
    monkeypatch.setattr(PLUGINS, "_warn", lambda _: None)
    answer = ProbeResponse(status=200, headers={}, body=b'{"choices": []}')
    assert [detect_type(answer) for _ in range(2)] == ["chat_completions"] * 2
    assert {"cage", "endpoint"} <= agent_keys()
    assert [each.partition(": ")[0] for each in problems] == [
        f"agent type 'dodo' of plug-in 'dodos' ({plugin.features[0].place}) cannot be imported from {what!r}"
        for what in ("dodo:Probe", "dodo:Settings")
    ]


def test_an_unregistered_type_does_not_exist() -> None:
    with pytest.raises(ValueError, match="parrot"):
        Config.model_validate({"agent": {"type": "parrot", "cage": "A"}})


@pytest.mark.parametrize("name", PLUGINS.all("agent type"))
def test_each_type_is_complete(name: str) -> None:
    """A type's settings have its name, its client can be imported, and its probe names it."""
    assert name in str(settings_class(name).model_fields["type"].annotation)
    assert callable(agent_type(name).load())
    assert probe_of(name).kind == name
    assert agent_type(name).help
