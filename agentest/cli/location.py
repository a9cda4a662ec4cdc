"""Where a command works (--cwd, --config), and the request for a run that it makes of its other options."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.config.config import Config
from agentest.config.file import config_in, find_config, find_config_above, load
from agentest.store.runs.folder import run_file
from agentest.support.errors import ConfigError, UsageError
from agentest.support.files import moved, path_from
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import tell

if TYPE_CHECKING:
    from agentest.domain.events import ReportOptions
    from agentest.runner.plan import Options
    from agentest.runner.prepare import Prepared, RunRequest

_DEFAULT_OUTPUT = ".agentest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The options --cwd and --config."""

    cwd: Path | None = None
    config: Path | None = None

    def enter(self) -> Project:
        """Return the project, and make its folder the working directory.

        Raises UsageError if the folder of --cwd does not exist.
        """
        if self.cwd is not None:
            if not self.cwd.is_dir():
                raise UsageError(f"--cwd: the folder {self.cwd} does not exist")
            os.chdir(self.cwd)
        project = project_of(Path.cwd(), self.config)
        if project.config_above:
            tell(f"agentest: configuration: {project.display_path(project.config_above)}")
            os.chdir(project.root)
        return project


@dataclass(frozen=True, slots=True)
class Project:
    """The two folders of a command, as absolute paths, and its configuration. Usually they are the same."""

    root: Path  # the folder of the configuration. Scenario files, servers and reports are relative to it.
    here: Path  # the user's folder. Paths on the command line are relative to it.
    config_above: Path | None = None  # the configuration file, if it was found above the user's folder
    named_config: Path | None = None

    @property
    def output_dir(self) -> Path:
        """The folder of the stored runs: `output_dir`, or the default if no configuration can be loaded.

        Commands that show past runs work without the variables and files that a run needs. Raises
        ConfigError if the user named the file.
        """
        return self.output_dir_of(self.settings(f"runs are looked for in {_DEFAULT_OUTPUT}"))

    def output_dir_of(self, settings: Config | None) -> Path:
        """Return the folder of the stored runs, given the configuration if there is one."""
        return self.root / (settings.output_dir if settings else _DEFAULT_OUTPUT)

    def settings(self, consequence: str) -> Config | None:
        """Return the configuration; None if there is none or it cannot be loaded.

        Args:
            consequence: what the command does without a configuration, for a note.

        Raises ConfigError if the user named the file.
        """
        try:
            return load(self.named_config or find_config(self.root), dict(os.environ)).config
        except ConfigError as error:
            if self.named_config:
                raise
            if self.config_above:
                tell(f"agentest: {error}; {consequence}")
            return None

    def read_plugins(self) -> bool:
        """Read the plug-ins that the configuration names. Prints an error; returns False if there was one."""
        try:
            if file := self.named_config or config_in(self.root):
                load(file, dict(os.environ))
        except ConfigError as error:
            tell(f"agentest: {error}")
            return False
        return True

    def run_file(self, reference: str) -> Path:
        """Return the file that a RUN argument means: an id, a prefix of one, `latest`, a folder or a file.

        Raises UsageError that lists the stored runs.
        """
        path = self.path(Path(reference))
        return path if path.is_file() else run_file(reference, self.output_dir, self.here)

    def path(self, path: Path) -> Path:
        """Return a path of the command line as an absolute path."""
        return self.here / path

    def from_root(self, text: str) -> str:
        """Rewrite a path of the command line, with any suffix, relative to the root."""
        if self.root == self.here or Path(text).is_absolute():
            return text
        return f"{os.path.relpath(self.here, self.root)}/{text}"

    def word(self, word: str) -> str:
        """Rewrite a word of the command line that may be a path or a name, relative to the root."""
        path = word.rpartition(":")[0] or word
        is_path = "://" not in word and ("/" in word or ".json" in word)
        exists = any((self.here / each).exists() for each in (word, path))
        return self.from_root(word) if is_path or exists else word

    def display_path(self, path: Path) -> str:
        """Return a path as the user would write it."""
        return path_from(self.here, path)


def project_of(folder: Path, config: Path | None = None) -> Project:
    """Return the project of a user's folder, searching upwards for the configuration if none is named."""
    if config:  # it can be in any folder
        return Project(folder, folder, named_config=folder / config)
    above = find_config_above(folder)
    return Project(above.parent, folder, above) if above else Project(folder, folder)


def request_of(
    project: Project,
    options: Options | None = None,
    reports: ReportOptions | None = None,
    targets: tuple[str, ...] = (),
    *,
    offline: bool = False,
) -> RunRequest:
    """Return the request for a run.

    Args:
        targets: words of the command line that name files or places of scenarios.
        offline: True if the command calls no model, whatever its options say.

    Raises UsageError if the engine options exclude each other, even if nothing runs.
    """
    from agentest.domain.events import ReportOptions
    from agentest.runner.engines import engine_of
    from agentest.runner.plan import Options
    from agentest.runner.prepare import RunRequest
    from agentest.scenarios.discovery import parse_path_choice

    options = options or Options()
    options = replace(
        options,
        paths=tuple(parse_path_choice(target, project.here) for target in targets),
        cassettes=options.cassettes and project.from_root(options.cassettes),
        offline=options.offline or offline,
    )
    engine_of(options)
    return RunRequest(project.root, project.named_config, options, reports or ReportOptions(), project.here)


@dataclass(frozen=True, slots=True)
class RunRecipe:
    """Prepare a run of scenarios in another process."""

    request: RunRequest

    def prepared(self, root: Path) -> Prepared:
        from agentest.runner.prepare import prepare

        return prepare(moved_request(self.request, root))


def moved_request(request: RunRequest, root: Path) -> RunRequest:
    """Move the request to another folder, without reports and comparisons, which the main process makes."""
    paths = tuple(replace(each, path=moved(each.path, request.root, root)) for each in request.options.paths)
    return replace(
        request,
        root=root,
        here=root,
        config=request.config and moved(request.config, request.root, root),
        options=replace(request.options, paths=paths),
        reports=replace(request.reports, reporters=(), baseline=None),
    )
