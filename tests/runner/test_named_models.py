"""Models named in files: which are called, and the notes about the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agentest.config.config import Config
from agentest.config.models import RequestedModel, Sampling
from agentest.models.providers import ModelSpec, resolve
from agentest.runner.judge_models import ConfiguredModels, named_models
from agentest.support.errors import ConfigError

COLD = Sampling(temperature=0.0)


def wish(model: str | None, sampling: Sampling = COLD, **more: Any) -> RequestedModel:
    return RequestedModel(
        **{"role": "judge", "file": "c.json", "key": "criteria.safety_v1", **more},
        model=model,
        sampling=sampling,
    )


def configured(
    environ: Mapping[str, str] | None = None, recorded: str = "", *, replay: bool = False, **keys: Any
) -> ConfiguredModels:
    """The models of a configuration, with these keys in the environment."""
    config, environ = Config.model_validate({"agent": {"endpoint": "http://h"}, **keys}), environ or {}
    roles = (resolve(config, role, environ) for role in (config.user, config.judge))
    return ConfiguredModels(config, environ, *roles, recorded=[recorded], replay=replay)


LOCAL = {"model": "ollama/llama3.2"}
KEYS = {"OPENAI_API_KEY": "sk-openai", "GOOGLE_API_KEY": "key-of-gemini"}


def asked(of: RequestedModel, among: ConfiguredModels) -> ModelSpec | None:
    """Return the model that is called instead of the configured one, if any."""
    return named_models([of], among)[0].get(of)


def noted(of: RequestedModel, among: ConfiguredModels) -> str:
    specs, notes = named_models([of], among)
    assert not any(spec.name == of.model for spec in specs.values())
    [note] = notes
    return note


def test_a_named_model_with_a_key_is_called() -> None:
    """It is called at its own provider, with that key and the file's sampling."""
    spec = asked(wish("gpt-4"), configured(KEYS, **LOCAL))
    assert spec is not None
    assert (spec.name, spec.base_url, spec.api_key) == (
        "openai/gpt-4",
        "https://api.openai.com/v1",
        "sk-openai",
    )
    assert spec.temperature == 0.0


def test_the_settings_of_its_role_apply() -> None:
    """Deadlines, limits and sampling of `judge` apply to a named judge unless the file overrides them."""
    judge = {"max_concurrency": 3, "retries": 1, "temperature": 0.9, "max_tokens": 7}
    spec = asked(wish("gpt-4"), configured(KEYS, judge=judge, user={"retries": 9}, **LOCAL))
    assert spec is not None
    assert (spec.max_concurrency, spec.retries, spec.temperature, spec.max_tokens) == (3, 1, 0.0, 7)
    user = asked(wish("gpt-4", role="user"), configured(KEYS, judge=judge, user={"retries": 9}, **LOCAL))
    assert user is not None
    assert (user.retries, user.max_tokens) == (9, None)


def test_the_key_of_a_provider_is_for_its_models_alone() -> None:
    """The configured key and base URL are used only for named models of the same provider."""
    options = {"base_url": "http://gateway/v1", "api_key": "sk-of-the-gateway"}
    gateway = configured(model="openai/gpt-5-mini", provider_options=options)
    spec = asked(wish("gpt-4"), gateway)
    assert spec is not None
    assert (spec.base_url, spec.api_key) == ("http://gateway/v1", "sk-of-the-gateway")
    assert "needs GROQ_API_KEY" in noted(wish("groq/llama"), gateway)
    alike = configured(provider="openai-compatible", model="m", provider_options=options)
    assert "needs OPENAI_API_KEY" in noted(wish("gpt-4"), alike)


@pytest.mark.parametrize("written", ["openai/gpt-5-mini", "gpt-5-mini", "models/gpt-5-mini"])
def test_the_configured_model_by_its_name(written: str) -> None:
    """A file that names the configured model uses it; different sampling makes it a separate model."""
    among = configured(KEYS, model="openai/gpt-5-mini")
    assert named_models([wish(written, Sampling())], among) == ({}, ())
    spec = asked(wish(written), among)
    assert spec is not None
    assert (spec.name, spec.temperature) == ("openai/gpt-5-mini", 0.0)


def test_a_gateways_own_name_for_a_model() -> None:
    """A name that the configured gateway uses means its model, even if others have one of that name."""
    options = {"base_url": "http://gateway/v1"}
    among = configured(KEYS, provider="openai-compatible", model="gpt-4", provider_options=options)
    assert named_models([wish("gpt-4", Sampling())], among) == ({}, ())


def test_sampling_alone() -> None:
    """A file without a model uses the configured one with the file's sampling."""
    spec = asked(wish(None, Sampling(top_p=0.9, seed=3)), configured(**LOCAL))
    assert spec is not None
    assert (spec.name, spec.sampling) == ("ollama/llama3.2", {"top_p": 0.9, "seed": 3})


def test_a_user_model_enables_named_judges() -> None:
    """If only a user model is configured, a named judge is still called."""
    among = configured(KEYS, user={"model": "ollama/llama3.2"})
    assert among.judge is None
    assert asked(wish("gpt-4"), among) is not None
    assert noted(wish("claude-3-opus"), among).endswith(
        "needs ANTHROPIC_API_KEY in the environment: no judge is configured, so no model is called"
    )


def test_places_of_one_model_share_a_note() -> None:
    """One note lists the places that name an unavailable model, up to three."""
    wishes = [wish("gpt-4", key=f"criteria.m{n}") for n in range(5)]
    _, notes = named_models([*wishes, wish("gemini-2.5-flash")], configured(**LOCAL))
    instead = [
        f"which needs {key} in the environment: the configured model ollama/llama3.2 is used instead"
        for key in ("OPENAI_API_KEY", "GEMINI_API_KEY or GOOGLE_API_KEY")
    ]
    assert notes == (
        f"c.json: criteria.m0, criteria.m1, criteria.m2 and 2 more name the judge gpt-4, {instead[0]}",
        f"c.json: criteria.safety_v1 names the judge gemini-2.5-flash, {instead[1]}",
    )


def test_a_key_that_cannot_be_sent() -> None:
    """A key that HTTP does not allow is an error with file and criterion, but without the key."""
    with pytest.raises(
        ConfigError, match=r"c\.json: criteria\.safety_v1: model openai/gpt-4: the key"
    ) as told:
        named_models([wish("gpt-4")], configured({"OPENAI_API_KEY": "sk\nsecret"}, **LOCAL))
    assert "secret" not in str(told.value)


def test_a_replay_uses_recorded_models() -> None:
    """A replay uses the recorded answers of a named model, whatever keys exist now."""
    taped = configured(KEYS, "openai/gpt-4", replay=True, **LOCAL)
    spec = asked(wish("gpt-4"), taped)
    assert spec is not None
    assert (spec.name, spec.api_key) == ("openai/gpt-4", None)
    assert "needs a recording of its answers" in noted(wish("gemini-2.5-flash"), taped)


def test_a_recording_is_not_completed_by_another() -> None:
    """No other model may complete the recording of a named model."""
    with pytest.raises(
        ConfigError, match=r"c\.json: criteria\.safety_v1: answers of openai/gpt-4 are recorded"
    ):
        named_models([wish("gpt-4")], configured({}, "openai/gpt-4", **LOCAL))
    assert asked(wish("gpt-4"), configured(KEYS, "openai/gpt-4", **LOCAL)) is not None
    assert "needs GROQ_API_KEY" in noted(wish("groq/llama"), configured({}, "openai/gpt-4", **LOCAL))


def test_without_a_model_no_named_model_is_called() -> None:
    """This does not depend on keys; a note says how to configure one."""
    assert named_models([wish("gpt-4"), wish(None)], configured(KEYS)) == (
        {},
        (
            "c.json: criteria.safety_v1 names the judge gpt-4, but no model is configured: "
            "set AGENTEST_MODEL=openai/gpt-4, or `model` in the configuration",
        ),
    )
    assert "set AGENTEST_MODEL=<provider>/house-judge" in noted(wish("house-judge"), configured(KEYS))
