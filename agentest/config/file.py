"""Find and read the configuration file: YAML or Python, `.env`, `${VAR}`, and errors with key and line.

`define_config` makes a configuration in Python, with the types of its keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import field, replace
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from pydantic import ValidationError

from agentest.config.agents.base import AnyAgent
from agentest.config.config import Config, read_plugins
from agentest.config.fields import Path_, Section, key_location
from agentest.config.yaml_file import MAX_BYTES, TOO_DEEP, read_yaml
from agentest.plugin import if_command
from agentest.support.errors import ConfigError, errors_as
from agentest.support.files import check_user_file, read_text_file, user_text
from agentest.support.importing import Imports, import_file, user_traceback
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import (
    Redactor,
    environment_secrets,
    header_secrets,
    secret_values,
    url_secrets,
)
from agentest.support.text import snake_case, snake_keys

if TYPE_CHECKING:
    from agentest.config.config import ExploreSettings
    from agentest.config.models import JudgeSettings, ProviderOptions, UserSettings
    from agentest.domain.repeat_setting import Repeat

NAMES = ("agentest.config.py", "agentest.config.yaml", "agentest.config.yml")
_WRITE_ONE = "Write one: agentest init, or agentest init --endpoint URL where your agent runs already. "
_VARIABLE = re.compile(r"\$(?P<escaped>\$)?\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, its source, and the secrets in it."""

    config: Config
    path: Path
    redact: Redactor = field(default_factory=Redactor)
    lines: Mapping[Path_, int] = field(default_factory=dict)

    def place(self, key: str) -> str:
        """Return the file and, if known, the line of a key, to begin an error with; "" without a file."""
        line = self.lines.get((key,))
        return "" if self.path.is_dir() else f"{self.path}:{line}: " if line else f"{self.path}: "


def find_config(root: Path, option: str = "--config") -> Path:
    """Return the configuration file of a folder. Raises ConfigError, with the option for another one."""
    path = config_in(root)
    if path:
        return path
    above = _up_to_repository(root)
    parents = f", nor above it up to {above[-1]}, the root of the repository" if above else ""
    near = next((p.name for end in ("json", "yaml", "yml") for p in root.glob(f"agentest*.{end}")), "")
    raise ConfigError(
        f"no configuration found in {root}{parents}: expected {NAMES[0]}, {NAMES[1]} or {NAMES[2]}. "
        + (f"Rename {near} to {NAMES[1]}. " if near else if_command("init", _WRITE_ONE))
        + f"{option} PATH names another file."
    )


def find_config_above(folder: Path) -> Path | None:
    """Return the nearest configuration in a parent folder, up to the root of the repository.

    Returns None if the folder itself has one. Outside of a repository, parent folders may belong to others,
    so they are not searched.
    """
    above = () if config_in(folder) else _up_to_repository(folder)
    return next((path for parent in above if (path := config_in(parent))), None)


def config_in(folder: Path) -> Path | None:
    """Return the configuration file of a folder, or None if there is none."""
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def repository_root(folder: Path) -> Path:
    """Return the root of the folder's repository, or the folder itself outside of a repository."""
    return (folder, *_up_to_repository(folder))[-1]


def _up_to_repository(folder: Path) -> tuple[Path, ...]:
    folders = (folder, *folder.parents)
    # In a worktree or a submodule, `.git` is a file.
    top = next((at for at, each in enumerate(folders) if (each / ".git").exists()), 0)
    return folders[1 : top + 1]


def load(
    path: Path,
    environ: MutableMapping[str, str] = os.environ,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> LoadedConfig:
    """Read and check a configuration file.

    First reads a `.env` file in the same folder into `environ`, without overriding existing variables. Raises
    ConfigError with the file, the line (in YAML), the key, and the actual and expected values.

    Args:
        changes: keys whose values replace those in the file.
    """
    try:
        check_user_file(path, MAX_BYTES)
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from None
    _read_dotenv(path.parent / ".env", environ)
    data, lines = _read_python(path, environ) if path.suffix == ".py" else _read_yaml(path)
    if changes:
        data = with_changes(data, changes, path)
        changed = {snake_case(key) for key in changes}
        lines = {at: line for at, line in lines.items() if at[0] not in changed}
    return _checked(data, lines, path, path.parent, environ)


def load_values(
    values: Mapping[str, Any] | Config, who: str, folder: Path, environ: Mapping[str, str] = os.environ
) -> LoadedConfig:
    """Check a configuration that is not in a file. Raises ConfigError like `load`.

    Args:
        who: the recipient of the values, named in errors instead of a file.
        folder: the folder for relative paths.
    """
    return replace(_checked(values, {}, Path(who), folder, environ), path=folder)


def with_changes(data: Any, changes: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a configuration's keys in snake case with changes applied. Raises ConfigError."""
    keys = Config.model_fields
    with errors_as(ConfigError, f"{path}: "):  # a key is given in both spellings
        old = _explicit_values(data) if isinstance(data, Section) else snake_keys(data, keys)
        return {**old, **snake_keys(changes, keys)}


def _read_yaml(path: Path) -> tuple[dict[str, Any], dict[Path_, int]]:
    document = read_yaml(path)
    if not isinstance(document.data, dict):
        problem = "is empty" if document.data is None else f"holds a {type(document.data).__name__}"
        raise ConfigError(f"{path}: {problem}, expected keys and values, at least `agent`")
    return document.data, document.lines


def _checked(
    data: Any, lines: dict[Path_, int], path: Path, folder: Path, environ: Mapping[str, str]
) -> LoadedConfig:
    used: dict[str, str] = {}
    try:
        values = interpolated(data, environ, used)
        if "plugins" in values:
            with Imports().importable(folder):
                read_plugins(values, lambda at: key_location(path, ("plugins", at), lines))
        config = Config.model_validate(values)
    except _Unset as unset:
        raise ConfigError(
            f"{key_location(path, unset.path, lines)}: the environment variable {unset.name} is not set. "
            f"Set it, or give a default: ${{{unset.name}:-default}}"
        ) from None
    except ValidationError as error:
        redact = Redactor([*secret_values(used), *environment_secrets(environ)])
        from agentest.config.errors import describe

        raise ConfigError(describe(error, path, lines, redact)) from None
    except RecursionError:
        raise ConfigError(f"{path}: {TOO_DEEP}") from None
    config = with_instructions(config, folder, lambda at: key_location(path, at, lines))
    secrets = [*secret_values(used), *environment_secrets(environ), *secrets_of(config)]
    return LoadedConfig(config, path, Redactor(secrets, transcripts=config.redact_transcripts), lines)


def _read_dotenv(path: Path, environ: MutableMapping[str, str]) -> None:
    with errors_as(ConfigError, f"{path}: cannot be read: ", (UnicodeDecodeError, OSError)):
        if not path.exists() or path.is_dir():
            return
        from dotenv import dotenv_values

        variables = dotenv_values(stream=StringIO(user_text(path, MAX_BYTES)))
    for name, value in variables.items():
        if value is not None:
            environ.setdefault(name, value)


def _read_python(path: Path, environ: Mapping[str, str]) -> tuple[Any, dict[Path_, int]]:
    redact = Redactor(environment_secrets(environ))
    try:
        module = import_file(path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the user's module may raise anything, even SystemExit
        cause = error.__cause__ if isinstance(error, ConfigError) else error
        if isinstance(cause, ValidationError):  # raised by define_config(…) or Config(…) in the module
            lines: dict[Path_, int] = {(): user_traceback(error, path)[1]}
            from agentest.config.errors import describe

            raise ConfigError(describe(cause, path, lines, redact)) from None
        traceback_text, line = user_traceback(error, path)
        raise ConfigError(
            f"{path}:{line}: importing the configuration failed\n{redact(traceback_text)}"
        ) from None
    if not hasattr(module, "config"):
        raise ConfigError(f"{path}: the module has no `config`; write config = {{'agent': …}}")
    if not isinstance(module.config, Config | Mapping):
        raise ConfigError(
            f"{path}: `config` is of type {type(module.config).__name__}, expected a dict or Config"
        )
    return module.config, {}


class _Unset(Exception):
    def __init__(self, name: str, path: Path_) -> None:
        self.name = name
        self.path = path


def interpolated(value: Any, environ: Mapping[str, str], used: dict[str, str], at: Path_ = ()) -> Any:
    """Return a configuration with the values of its variables, which are added to `used`."""
    if isinstance(value, str):
        return _fill(value, environ, used, at)
    if isinstance(value, Section):
        value = _explicit_values(value)
    if isinstance(value, Mapping):
        return {k: interpolated(v, environ, used, (*at, k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [interpolated(v, environ, used, (*at, i)) for i, v in enumerate(value)]
    return value


def _explicit_values(section: Section) -> dict[str, Any]:
    names = {*section.model_fields_set, *({"type"} & type(section).model_fields.keys())}
    fields = type(section).model_fields.items()
    return {info.alias or name: getattr(section, name) for name, info in fields if name in names}


def _fill(text: str, environ: Mapping[str, str], used: dict[str, str], at: Path_) -> str:
    def replace(match: re.Match[str]) -> str:
        if match["escaped"]:
            return match[0][1:]
        name, default = match["name"], match["default"]
        value = environ.get(name)
        if value is None or (value == "" and default is not None):
            if default is None:
                raise _Unset(name, at)
            return default
        used[name] = value
        return value

    return _VARIABLE.sub(replace, text)


def secrets_of(config: Config) -> list[str]:
    """Return all secrets in a configuration."""
    secrets = [secret for agent in _agents(config) for secret in agent.secrets]
    secrets += [secret for server in config.servers for secret in server.secrets]
    roles = (config.user, config.judge, *([config.judge.confirm] if config.judge.confirm else []))
    for options in (config.provider_options, *(role.provider_options for role in roles)):
        secrets += [*header_secrets(options.headers), *url_secrets(options.base_url or "")]
        secrets += [options.api_key] if options.api_key else []
    return secrets


def with_instructions(
    config: Config, folder: Path, locate: Callable[[Path_], str] = lambda at: ".".join(map(str, at))
) -> Config:
    """Replace every `instructions_file` with `instructions` that contain its text.

    Args:
        folder: the folder for relative paths.
        locate: formats the position of a key, for errors.
    Raises ConfigError for a file that is empty or cannot be read.
    """

    def read(agent: Any, *at: str | int) -> Any:
        if agent.instructions_file is None:
            return agent
        path = folder / agent.instructions_file
        try:
            text = read_text_file(path)
        except ValueError as error:
            location = locate((*at, "instructions_file"))
            raise ConfigError(
                f"{location}: {path} {error}; name a text file with the agent's instructions"
            ) from None
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


class RunSettings(TypedDict, total=False):
    """Keys of a configuration besides `agent` and `model`. `Config` has their defaults."""

    agents: Mapping[str, AnyAgent | Mapping[str, Any]]
    compare: Sequence[AnyAgent | Mapping[str, Any]]
    servers: Mapping[str, Any] | Sequence[Any]
    provider: str | None
    provider_options: ProviderOptions | Mapping[str, Any]
    user: UserSettings | Mapping[str, Any]
    judge: JudgeSettings | Mapping[str, Any]
    conversations_per_scenario: int
    repeat: Repeat | Mapping[str, Any] | str | None
    max_turns: int
    request_timeout_ms: int
    concurrency: int
    max_concurrency: int | None
    parallel: bool
    debounce_ms: int
    date: str | None
    metrics: Sequence[str] | None
    custom_metrics: Sequence[Any]
    thresholds: Mapping[str, float]
    include: Sequence[str]
    exclude: Sequence[str]
    reporters: Sequence[str]
    output_dir: str
    keep_runs: int
    baseline: str | None
    fail_on_regression: bool
    cache: bool
    cassettes: str | None
    unmocked_tools: Literal["error", "passthrough", "simulate"]
    strict: bool
    redact_transcripts: bool
    redact: Mapping[str, str]
    fail_on_error_severity: Literal["low", "medium", "high", "critical"]
    explore: ExploreSettings | Mapping[str, Any]
    plugins: Sequence[str]


class ConfigSettings(RunSettings, total=False):
    """All keys of a configuration."""

    agent: AnyAgent | Mapping[str, Any]
    model: str | None


def define_config(mapping: Mapping[str, Any] | None = None, /, **settings: Unpack[ConfigSettings]) -> Config:
    """Return a configuration, as `config` of an agentest.config.py or for `Runner`.

        config = define_config(agent={"endpoint": "http://localhost:8000/v1/chat/completions"}, max_turns=4)

    Keywords take precedence over the keys of a mapping.

    Raises ConfigError that names the key and the expected value.
    """
    try:
        return Config.model_validate({**(mapping or {}), **settings})
    except ValidationError as error:
        from agentest.config.errors import describe

        raise ConfigError(describe(error, Path("define_config"), {}, Redactor())) from error
