"""Sections of commands and options in `--help`, and hints for ADK commands that Agentest does not have.

The module imports only click.
"""

from __future__ import annotations

from itertools import pairwise

import click

_REPLACEMENTS = {
    "web": ("use `agentest ui`, which shows runs, talks to the agent and writes cases"),
}

_RENAMED = {"mcp-stdio": "mock-server stdio", "mcp-tools": "mock-server tools"}
"""Maps the former name of a command, which works until the next version, to its name."""

SECTIONS = {
    "Run and compare": {
        "run": ("agentest.cli.run_commands", "Run scenarios and report which passed."),
        "runs": ("agentest.cli.stored_runs", "List the stored runs."),
        "show": ("agentest.cli.stored_runs", "Print a stored run again."),
        "ui": (
            "agentest.plugins.page.commands.ui",
            "Show runs, talk to the agent and write cases on a page.",
        ),
        "compare": ("agentest.cli.comparison", "Compare two runs: what regressed, what improved."),
        "explore": ("agentest.cli.run_commands", "Find failures that no test was written for."),
        "merge": ("agentest.cli.merge", "Merge the shards of several machines into one run."),
    },
    "Start": {
        "init": (
            "agentest.plugins.authoring.commands.project",
            "Write a configuration and a first scenario.",
        ),
        "doctor": (
            "agentest.plugins.authoring.commands.project",
            "Check that everything a run needs is in place.",
        ),
        "docs": (
            "agentest.plugins.authoring.commands.docs",
            "Print a page of the documentation, or list the topics.",
        ),
        "chat": (
            "agentest.plugins.page.commands.chat",
            "Talk to the agent yourself, with a scenario's mocks.",
        ),
        "schema": (
            "agentest.plugins.authoring.commands.project",
            "Print the JSON Schema by which editors check files.",
        ),
    },
    "Write tests": {
        "record-tools": (
            "agentest.plugins.authoring.commands.record_tools",
            "Record the results of real tools as mocks.",
        ),
        "mock-server": (
            "agentest.plugins.servers.command",
            "Serve mocks over stdio; store a real server's tool list.",
        ),
        "export": ("agentest.cli.stored_runs", "Turn conversations of a run into test cases."),
        "import": (
            "agentest.plugins.authoring.commands.row_import",
            "Write a scenario file for rows of data.",
        ),
        "generate": (
            "agentest.plugins.authoring.commands.generate",
            "Write scenarios for the agent's rules and tools.",
        ),
        "coverage": (
            "agentest.plugins.authoring.commands.coverage",
            "Show what has tests, and which tools were called.",
        ),
    },
    "Coding agents": {
        "skill": (
            "agentest.plugins.authoring.commands.skill",
            "Teach a coding agent to write and repair scenarios.",
        ),
        "mcp": (
            "agentest.plugins.authoring.commands.mcp",
            "Serve Agentest's tools to coding agents over MCP.",
        ),
    },
    "Judges": {
        "judge": ("agentest.cli.judge", "Judge the conversations of a run again."),
        "label": ("agentest.plugins.page.commands.calibrate", "Label conversations yourself."),
        "calibrate": ("agentest.plugins.page.commands.calibrate", "Measure how well judge and people agree."),
        "show-prompts": ("agentest.cli.judge", "Show the prompts of the judges."),
    },
    "ADK evaluation sets": {
        "eval": ("agentest.cli.run_commands", "Run evaluation sets against the agent."),
        "eval-set": ("agentest.plugins.adk.command", "Create evaluation sets, and add cases."),
        "migrate": ("agentest.plugins.adk.command", "Convert an old evaluation set."),
    },
}
"""Maps a section to its commands: their modules, and their help. Each row fits into 80 columns."""
_RUN_OPTIONS = {
    "Select scenarios": (
        "--scenario --file --tag --agent --last-failed --failed-first --resume --shard "
        "--shard-by --list --dry-run"
    ),
    "How it runs": (
        "--conversations --repeat --concurrency --workers --engine --ray-address --shuffle --fail-fast "
        "--unmocked-tools --strict --record-tools --watch"
    ),
    "Models": (
        "--model --offline --max-cost --max-llm-calls --record --replay --replay-or-record --cassettes "
        "--no-cache"
    ),
    "Reports": "--reporter -v --verbose -q --baseline --fail-on-regression",
}
"""Maps a section to the options of a command that runs something, in the order of the help."""


_EXPLORE_OPTIONS = {
    "What is tried": (
        "--parts --faults --injections --mutations --seed --scenario --file --tag --agent --resume "
        "--replay --dry-run"
    ),
    "How much": "--conversations --minutes --max-cost --max-llm-calls --concurrency --no-shrink",
    "Models": "--model --offline --record --replay-or-record --cassettes --no-cache --unmocked-tools",
    "Reports": "--fail-on --no-save --reporter -v --verbose -q",
}

_FILE_ENDINGS = (".py", ".sim.yaml", ".sim.yml", ".test.json", ".evalset.json")


def _can_name_run(word: str) -> bool:
    """Return False if a word names a file of scenarios or cases, or a place in one."""
    return not word.partition(":")[0].endswith(_FILE_ENDINGS)


_CAN_BE_VALUE = {"--shuffle": str.isdecimal, "--resume": _can_name_run}
"""Maps an option whose value is optional to the words that can be its value."""
FIRST_STEPS = (
    "To try it without an agent, a key or a network: `agentest init demo --demo`, then "
    "`agentest run --cwd demo`. "
    "For an agent that is running: `agentest init --endpoint URL`."
)


def with_dashes(option: str) -> str:
    """Replace underscores with dashes, because ADK's command line writes options with underscores."""
    return option.replace("_", "-")


class SectionedGroup(click.Group):
    """A command group that lists its commands in sections and suggests a replacement for ADK's commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does. Raises UsageError."""
        if args[0] in _REPLACEMENTS:
            ctx.fail(f"No such command '{args[0]}': {_REPLACEMENTS[args[0]]}.")
        if name := _RENAMED.get(with_dashes(args[0])):
            from agentest.support.terminal import tell

            tell(f"agentest: `agentest {args[0]}` is now `agentest {name}`: change the command")
            args = [*name.split(), *args[1:]]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands in sections, without importing their modules."""
        width = max(map(len, self.commands))
        for title, rows in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", text) for name, (_, text) in rows.items()])


class RunCommand(click.Command):
    """A command that runs something, with its options in sections and its own options first."""

    sections = _RUN_OPTIONS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments. Raises click.UsageError.

        The values of --shuffle and --resume are optional, but click takes any next word as their value. A
        word that cannot be the value is an argument.
        """
        end = args.index("--") if "--" in args else len(args)
        for at, (option, word) in enumerate(pairwise(args[:end])):
            if option in _CAN_BE_VALUE and not _CAN_BE_VALUE[option](word):
                args[at] = f"{option}="
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in sections."""
        rows = {
            param.opts[0]: param.get_help_record(ctx)
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
        }
        sections = {title: names.split() for title, names in self.sections.items()}
        listed = {name for names in sections.values() for name in names}
        for title, names in {"Options": [name for name in rows if name not in listed], **sections}.items():
            if records := [row for name in names if (row := rows.get(name))]:
                with formatter.section(title):
                    formatter.write_dl(records)


class ExploreCommand(RunCommand):
    """`agentest explore`, with its options in sections."""

    sections = _EXPLORE_OPTIONS
