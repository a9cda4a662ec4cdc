"""Commands of ADK's that users look for, and what does their work here. It imports nothing but click."""

from __future__ import annotations

import click

_INSTEAD = {
    "web": (
        "there is no web page. `agentest chat` talks to the agent, `agentest export RESULTS --to evalset` "
        "makes eval cases of conversations, `agentest eval AGENT FILE --print-detailed-results` runs them"
    ),
}


class Commands(click.Group):
    """A group that says what there is in place of a command that it does not have."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it. Raises UsageError."""
        if args[0] in _INSTEAD:
            ctx.fail(f"No such command '{args[0]}': {_INSTEAD[args[0]]}.")
        return super().resolve_command(ctx, args)
