"""Makes what the tests marked `frameworks` need: `python tests/frameworks/install.py FOLDER`.

FOLDER then has a virtual environment for each line of environments.toml, the packages of node/, and the
compiled services. What is there already is left as it is. It needs uv, a JDK, and the registries of Python
and npm. What cannot be installed ends it with an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
WANTED = tomllib.loads((HERE / "environments.toml").read_text(encoding="utf-8"))


def run(*words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    subprocess.run(list(map(str, words)), cwd=cwd, env={**os.environ, **(env or {})}, check=True)


def environment(folder: Path, packages: list[str]) -> None:
    """A virtual environment with these packages and what they need."""
    run("uv", "venv", "-q", "--clear", "--python", sys.executable, folder)
    newest = ["--exclude-newer", WANTED["newest"]]
    run("uv", "pip", "install", "-q", "--python", folder / "bin" / "python", *newest, *packages)


def npm(folder: Path, programs: Path) -> None:
    """The packages of node/package-lock.json, and nothing else."""
    folder.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / "node" / name, folder)
    path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    run(programs / "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder, env=path)


def services(folder: Path, programs: Path) -> None:
    """The services in compiled languages."""
    run(programs / "go", "build", "-o", folder / "go_service", HERE / "services" / "server.go")
    run("javac", "-d", folder, HERE / "services" / "Server.java")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parts = {
        **{name: (environment, packages) for name, packages in WANTED["python"].items()},
        "npm": (npm, folder / "node" / "bin"),
        "services": (services, folder / "go" / "bin"),
    }
    for name, (make, wanted) in parts.items():
        print(f"{folder / name}", flush=True)
        if not (folder / name / ".made").exists():
            shutil.rmtree(folder / name, ignore_errors=True)
            make(folder / name, wanted)  # type: ignore[operator]
            (folder / name / ".made").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
