"""Handlers that run tools that a scenario mocks."""

from __future__ import annotations

from project import Project


def suite(*turns: str, more: str = "") -> str:
    return "\n".join(
        f'scenario("s{n}", turns=["{turn}"], tools={{"refund": {{"ok": True}}}}{more})'
        for n, turn in enumerate(turns)
    )


def test_a_handler_that_runs_a_mocked_tool(project: Project) -> None:
    """A handler that records its own call of a mocked tool has bypassed the mock."""
    project.write(
        "shop.py",
        """
def own(messages, ctx):
    ctx.record_tool(messages[-1]["content"], {}, "paid")
    return "Done."


def asked(messages, ctx):
    ctx.record_tool("refund", {}, ctx.resolve_tool("refund", {}))
    ctx.record_tool("shop_refund", {}, "a tool of another name")
    return "Done."
""",
    )
    project.scenario(
        suite("refund", more=', agent="own"') + "\n" + suite("x", more=', agent="asked"').replace("s0", "s1")
    )
    agents = {name: {"type": "custom", "handler": f"shop:{name}"} for name in ("own", "asked")}
    project.config("", agent=agents["asked"], agents=agents)
    ran = project.run("--scenario", "=s0")
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "agent 'own' ran tool 'refund' itself, which scenario 's0' mocks" in ran.stdout
    ran = project.run("--scenario", "=s1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
