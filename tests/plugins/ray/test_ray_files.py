"""Files sent to a cluster, and output of workers there, without Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.plugins.ray.address import ProjectFiles, files_of, needed_variables
from agentest.runner.plan import Plan
from agentest.runner.prepare import Prepared, RunRequest

PRINTING = """
import os, subprocess, threading
from agentest.plugins.ray.worker_process import RedactedOutput
key = "-----BEGIN KEY-----\\nfirst-line-of-it\\nsecond-line-of-it\\n-----END KEY-----"
RedactedOutput([key, "single-line-of-it"])
print("printed:", key, "and single-line-of-it", flush=True)
subprocess.run(["sh", "-c", 'echo "by a program: $0" >&2', key])
print("the end", flush=True)
for number in (1, 2):
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
for thread in threading.enumerate():
    if thread.daemon:
        thread.join()
"""


def prepared_below(root: Path, output_dir: str = ".agentest") -> Prepared:
    config = Config.model_validate({"agent": {"endpoint": "http://127.0.0.1:9/"}, "outputDir": output_dir})
    loaded = LoadedConfig(config, root / "agentest.config.yaml")
    return Prepared(RunRequest(root), loaded, Plan((), {}, False), ())


def files_below(root: Path, output_dir: str = ".agentest") -> ProjectFiles:
    return files_of(prepared_below(root, output_dir))


def test_a_link_to_a_folder_above_it_is_not_followed(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "up").symlink_to(tmp_path / "a")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "beside").symlink_to(inner)
    (tmp_path / "data.bin").write_bytes(b"12345")
    found = files_below(tmp_path)
    assert {"/loop", "/a/b/up"} <= set(found.excludes)
    assert "/beside" not in found.excludes
    assert found.size >= 5


def test_the_output_stays_here_however_it_is_written(tmp_path: Path) -> None:
    assert "/out" in files_below(tmp_path, "./out/").excludes


def test_variables_travel_that_modules_of_the_agent_read(tmp_path: Path) -> None:
    """No scenario imports them, and the configuration need not, either."""
    for name, variable in (("agent/tools.py", "SHOP_URL"), ("own-venv/lib/x.py", "OTHER_URL")):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text(f'import os\nurl = os.environ["{variable}"]\n')
    (tmp_path / "own-venv" / "pyvenv.cfg").touch()
    environ = {"SHOP_URL": "http://shop", "OTHER_URL": "http://other", "AGENTEST_X": "1"}
    found = needed_variables(prepared_below(tmp_path), environ)
    assert found == {"SHOP_URL": "http://shop", "AGENTEST_X": "1"}


@pytest.mark.slow
def test_no_line_of_a_key_is_printed() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTING], capture_output=True, text=True, timeout=60)
    printed = done.stdout + done.stderr
    assert "the end" in printed
    assert "by a program:" in printed
    assert "line-of-it" not in printed
    assert "KEY-----" not in printed
