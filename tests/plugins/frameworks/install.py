"""Makes what tests marked `frameworks` need: `python tests/plugins/frameworks/install.py FOLDER [--newest]`.

FOLDER then has a virtual environment for each line of environments.toml, the packages of node/, and the
compiled services. What was made of the same before is left as it is. It needs uv, a JDK, and the registries
of Python and npm. What cannot be installed ends it with an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = ("package.json", "package-lock.json")
NEWEST = "--newest" in sys.argv[2:]
"""True for the newest versions. An environment whose name ends with a version keeps its own."""
WANTED = tomllib.loads((HERE / "environments.toml").read_text(encoding="utf-8"))


def run(*words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    subprocess.run(list(map(str, words)), cwd=cwd, env={**os.environ, **(env or {})}, check=True)


def environment(folder: Path, packages: list[str]) -> None:
    """A virtual environment with these packages and what they need."""
    run("uv", "venv", "-q", "--clear", "--python", sys.executable, folder)
    newest = [] if NEWEST else ["--exclude-newer", WANTED["newest"]]
    run("uv", "pip", "install", "-q", "--python", folder / "bin" / "python", *newest, *packages)


def expanded(packages: list[str]) -> list[str]:
    """The packages, with those that "+tracing" and "+agentest" (what Agentest needs) stand for."""
    project = tomllib.loads((HERE.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"+tracing": WANTED["tracing"], "+agentest": project["dependencies"]}
    return [one for name in packages for one in groups.get(name, [name])]


def npm(folder: Path, programs: Path) -> None:
    """The packages of node/package-lock.json, and nothing else."""
    folder.mkdir()
    for name in PACKAGES:
        shutil.copy(HERE / "node" / name, folder)
    path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    run(programs / "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder, env=path)


def services(folder: Path, programs: Path) -> None:
    """The services in compiled languages."""
    run(programs / "go", "build", "-o", folder / "go_service", HERE / "services" / "server.go")
    run("javac", "-d", folder, HERE / "services" / "Server.java")


def make(folder: Path, wanted: str, how: Callable[[], None]) -> None:
    """Make a folder, unless it was made of the same before."""
    print(folder, flush=True)
    made = folder / ".made"
    if not made.exists() or made.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        how()
        made.write_text(wanted, encoding="utf-8")


def content(part: str, *names: str) -> str:
    return "\n".join((HERE / part / name).read_text(encoding="utf-8") for name in names)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, wanted in WANTED["python"].items():
        packages = expanded(wanted)
        if NEWEST and not name[-1].isdigit():
            packages = [each.partition("==")[0] for each in packages]
        make(folder / name, str([WANTED["newest"], packages]), partial(environment, folder / name, packages))
    npm_folder, services_folder = folder / "npm", folder / "services"
    make(npm_folder, content("node", *PACKAGES), partial(npm, npm_folder, folder / "node" / "bin"))
    sources = content("services", "server.go", "Server.java")
    make(services_folder, sources, partial(services, services_folder, folder / "go" / "bin"))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
