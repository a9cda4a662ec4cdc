"""Make the README's pictures from real runs of the salon and its faulty agent.

python tests/support/pictures.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from urllib.parse import quote

import page_at
import project
import terminal_picture

REPOSITORY = Path(__file__).parents[2]
PICTURES = REPOSITORY / "docs" / "images"
SIZE = {"width": 600, "height": 560}  # at twice the pixels: legible on a phone
SHOWN = "user books a morning slot"
MOST_BYTES = 220_000
CONFIG = """\
agent:
  name: booking
  endpoint: http://127.0.0.1:{port}/v1/chat/completions
  server:
    command: {python} agent.py --port {port}
    ready: http://127.0.0.1:{port}/health
metrics: []
"""
MISTAKES = {
    'HOURS = "The salon is open from 9:00 to 17:00': 'HOURS = "The salon is open from 9:00 to 18:00',
    """    if time in free_times:
        return ToolRequest("create_booking", {"service": service, "date": date, "time": time})
""": """    if free_times:
        return ToolRequest("create_booking", {"service": service, "date": date, "time": free_times[0]})
""",
}
"""What the agent says → what it says by mistake: it has other hours, and books the first free time."""


def broken(agent: str) -> str:
    """The agent's source with its mistakes. Raises ValueError if one cannot be placed."""
    for right, wrong in MISTAKES.items():
        if right not in agent:
            raise ValueError(f"the agent does not say {right!r} any more: choose another mistake")
        agent = agent.replace(right, wrong)
    return agent


def make_runs(root: Path) -> None:
    """Run the scenarios with the agent as it is, twice, and then leave it with its mistakes."""
    for scenario in (REPOSITORY / "scenarios").glob("*.py"):
        shutil.copy(scenario, root)
    agent = (REPOSITORY / "examples" / "booking_agent" / "agent.py").read_text(encoding="utf-8")
    config = CONFIG.format(port=project.free_port(), python=sys.executable)
    (root / "agentest.config.yaml").write_text(config, encoding="utf-8")
    (root / "agent.py").write_text(agent, encoding="utf-8")
    command = [sys.executable, "-m", "agentest", "run", "--reporter", "json"]
    for _ in range(2):
        subprocess.run(command, cwd=root, check=False, stdout=subprocess.DEVNULL, env=_without_model())
    (root / "agent.py").write_text(broken(agent), encoding="utf-8")


def _without_model() -> dict[str, str]:
    hidden = ("AGENTEST_MODEL", "CI", "NO_COLOR")
    return {key: value for key, value in os.environ.items() if key not in hidden}


def take(folder: Path) -> None:
    """Write the pictures of a run, on a terminal and on the page, into a folder."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        make_runs(Path(place))
        command = [sys.executable, "-m", "agentest", "run"]
        svg = terminal_picture.picture(command, Path(place), _without_model(), "agentest run")
        (folder / "run.svg").write_text(svg, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with page_at.served(Path(place)) as first:
            views = {
                "run": ("#/run", ".causes li"),
                "conversation": (f"#/conversation?scenario={quote(SHOWN)}&agent=booking&turn=0", ".turn"),
            }
            for (name, (view, there)), scheme in product(views.items(), ("light", "dark")):
                options = {"viewport": SIZE, "device_scale_factor": 2, "reduced_motion": "reduce"}
                page = browser.new_page(color_scheme=scheme, **options)
                page.goto(first + view)
                page.locator(there).first.wait_for()
                page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
                page.screenshot(path=folder / f"{name}{'-dark' if scheme == 'dark' else ''}.png")
                page.close()
        browser.close()


if __name__ == "__main__":
    PICTURES.mkdir(parents=True, exist_ok=True)
    take(PICTURES)
    for picture in sorted(PICTURES.iterdir()):
        size = picture.stat().st_size
        print(
            f"{picture.relative_to(REPOSITORY)}  {size:,} bytes{'' if size < MOST_BYTES else ': too large'}"
        )
