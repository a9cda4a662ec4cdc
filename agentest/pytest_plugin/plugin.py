"""The plugin that pytest loads in every run: options and a fixture. Everything else is imported on use."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from agentest.pytest_plugin.fixture import Agentest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options and the ini key."""
    group = parser.getgroup("agentest", "scenarios of AI agents")
    group.addoption("--agentest", action="store_true", help="collect scenarios: *.sim.py, *.sim.yaml")
    group.addoption(
        "--agentest-config", metavar="PATH", help="configuration of Agentest; default: as `agentest run`"
    )
    group.addoption(
        "--agentest-offline", action="store_true", help="call no model, even if one is configured"
    )
    group.addoption(
        "--agentest-strict",
        action="store_true",
        default=None,
        help="treat warnings that question a verdict as errors; default: on; configuration key `strict`",
    )
    group.addoption(
        "--agentest-no-strict", dest="agentest_strict", action="store_false", help="undo `strict`"
    )
    parser.addini("agentest", "collect scenarios: *.sim.py, *.sim.yaml", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the session hooks if scenarios are requested."""
    if _wanted(config):
        from agentest.pytest_plugin.session import register

        register(config)


def _wanted(config: pytest.Config) -> bool:
    return bool(config.getoption("agentest") or config.getini("agentest"))


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> None:
    """Raise a hint if the user names a scenario file without `--agentest`."""
    named = module_path.name.endswith(".sim.py") and parent.session.isinitpath(module_path)
    if named and not _wanted(parent.config):
        raise parent.CollectError(f"{module_path.name} is a scenario file: pytest --agentest runs it")


@pytest.fixture(scope="session")
def agentest(request: pytest.FixtureRequest) -> Agentest:
    """Run scenarios and evaluation sets in a test: `agentest.run(scenario(…)).check()`."""
    from agentest.pytest_plugin.fixture import Agentest
    from agentest.pytest_plugin.project import project_file

    offline = bool(request.config.getoption("agentest_offline"))
    strict = request.config.getoption("agentest_strict")
    return Agentest(project_file(request.config), offline=offline, strict=strict)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """End the failure of a test with Agentest's own reason, at the line of the test."""
    error = call.excinfo.value if call.excinfo else None
    if not isinstance(item, pytest.Function) or not type(error).__module__.startswith("agentest."):
        return (yield)
    from agentest.pytest_plugin.fixture import end_at_test, shorten_report

    assert call.excinfo is not None
    end_at_test(call.excinfo)
    report = yield
    shorten_report(report, call.excinfo.value)
    return report
