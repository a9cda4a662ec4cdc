"""The models that files wish for in place of the configured ones: which are asked, and why others are not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from agentest.config.config import Config
from agentest.config.wishes import ModelWish, Sampling
from agentest.models.access import MissingAccess
from agentest.models.providers import (
    ModelSpec,
    litellm_name,
    recorded,
    resolve_named,
    sampled,
)
from agentest.support.errors import ConfigError

_WHO = {"judge": "judge", "user": "simulated user"}
_NOBODY = {
    "judge": "no judge is configured, so nobody is asked",
    "user": "no model is configured for the user, who follows rules",
}
_SHOWN = 3
"""How many places a note names."""


@dataclass(frozen=True, slots=True)
class Configured:
    """The configured models, and what else a wish is judged by."""

    config: Config
    environ: Mapping[str, str]
    user: ModelSpec | None
    judge: ModelSpec | None
    override: str | None = None
    """The model of `--model` or `AGENTEST_MODEL`."""
    recorded: Collection[str] = ()
    """The named models of which answers are recorded, where recorded answers count."""
    replay: bool = False
    """Whether nobody is asked but the recording."""

    def of(self, wish: ModelWish) -> ModelSpec | None:
        """The model of the wish's role."""
        return self.user if wish.role == "user" else self.judge

    def resolved(self, wish: ModelWish, name: str) -> ModelSpec:
        """A model that is not the configured one. Raises MissingAccess, ConfigError."""
        settings = self.config.user if wish.role == "user" else self.config.judge
        if self.replay and name not in self.recorded:
            raise MissingAccess(f"nothing is recorded of {name}", "a recording of its answers")
        if self.replay:
            return recorded(name, settings)
        try:
            return resolve_named(name, self.config, settings, self.environ, self.override)
        except MissingAccess as missing:
            if name not in self.recorded:
                raise
            # The configured model's answers would take the place of the recorded ones.
            raise ConfigError(
                f"answers of {name} are recorded, and asking for more needs {missing.what}; "
                "set it, or replay what there is with --replay"
            ) from None


def named_models(
    wishes: Sequence[ModelWish], configured: Configured
) -> tuple[dict[ModelWish, ModelSpec], tuple[str, ...]]:
    """The wishes that are met, and what the user should know: who is asked in place of whom, and why.

    For every other one the configured model of the role answers. In a run without any model nobody is asked,
    whatever keys the environment holds. Raises ConfigError, with file and key, for what cannot be a model.
    """
    if not (configured.user or configured.judge):
        return {}, tuple(_about_offline(wishes))
    specs: dict[ModelWish, ModelSpec] = {}
    problems: dict[tuple[str, str | None, str], list[ModelWish]] = {}
    for wish in wishes:
        spec, problem = _met(wish, configured)
        if spec and spec != configured.of(wish):
            specs[wish] = spec
        if problem:
            problems.setdefault((wish.role, wish.model, problem), []).append(wish)
    notes = [_about(missed, problem, configured) for (*_, problem), missed in problems.items()]
    return specs, (*notes, *_about_not_sent(wishes))


def _met(wish: ModelWish, configured: Configured) -> tuple[ModelSpec | None, str]:
    """Who is asked, None where nobody can be, and why it is not the model that is named."""
    own = configured.of(wish)
    if wish.model is None:
        return own and sampled(own, wish.sampling), ""
    spec, problem = _named(wish, wish.model, configured)
    return spec and sampled(spec, wish.sampling), problem


def _named(wish: ModelWish, written: str, configured: Configured) -> tuple[ModelSpec | None, str]:
    own = configured.of(wish)
    if own and written == own.name:
        return own, ""
    try:
        name = litellm_name(written)
    except ConfigError as error:
        return own, str(error).removeprefix(f"model {written!r} ")
    if own and name == own.name:
        return own, ""
    try:
        return configured.resolved(wish, name), ""
    except MissingAccess as missing:
        return own, f"needs {missing.what}"
    except ConfigError as error:
        raise ConfigError(f"{wish.place}: {error}") from None


def _about(missed: Sequence[ModelWish], problem: str, configured: Configured) -> str:
    """Who is not asked and why, and who is in their place."""
    wish = missed[0]
    own = configured.of(wish)
    instead = f"the configured model {own.name} is asked in its place" if own else _NOBODY[wish.role]
    return f"{_named_by(missed)}, which {problem}: {instead}"


def _about_offline(wishes: Sequence[ModelWish]) -> Iterator[str]:
    """That nobody is asked, and how the model that is named could be."""
    by_model: dict[tuple[str, str], list[ModelWish]] = {}
    for wish in wishes:
        if wish.model:
            by_model.setdefault((wish.role, wish.model), []).append(wish)
    for (_, model), named in by_model.items():
        yield (
            f"{_named_by(named)}, but no model is configured and none is asked: "
            f"set AGENTEST_MODEL={_suggested(model)}, or `model` in the configuration"
        )


def _about_not_sent(wishes: Sequence[ModelWish]) -> Iterator[str]:
    """What of a model's configuration has no effect here."""
    for wish in wishes:
        if wish.not_sent:
            keys = ", ".join(f"`{key}`" for key in wish.not_sent)
            sent = ", ".join(field.name for field in fields(Sampling))
            yield f"{wish.place}: {keys} of the model's configuration is not sent to it; what is: {sent}"


def _named_by(wishes: Sequence[ModelWish]) -> str:
    """Where a model is named, and as what."""
    by_file: dict[str, list[str]] = {}
    for wish in wishes[:_SHOWN]:
        by_file.setdefault(wish.file, []).append(wish.key)
    where = "; ".join(f"{file}: {', '.join(keys)}" for file, keys in by_file.items())
    more = len(wishes) - _SHOWN
    where += f" and {more} more" if more > 0 else ""
    verb = "names" if len(wishes) == 1 else "name"
    return f"{where} {verb} the {_WHO[wishes[0].role]} {wishes[0].model}"


def _suggested(model: str) -> str:
    try:
        return litellm_name(model)
    except ConfigError:
        return f"<provider>/{model}"
