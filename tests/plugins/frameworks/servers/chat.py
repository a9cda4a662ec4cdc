"""The shop's agent as a program: `chat.py --session ID TEXT` prints the reply. It fails with status 3.

The texts of a session are kept in the working directory. The log is on the standard error output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import shop


def remembered(session: str, text: str) -> list[str]:
    """The texts of the session, with the new one."""
    path = Path(f"{session}.json")
    texts = [*(json.loads(path.read_text()) if path.exists() else []), text]
    path.write_text(json.dumps(texts))
    return texts


def main(option: str, session: str, text: str) -> None:
    print(f"{option} {session}", file=sys.stderr)
    texts, results = remembered(session, text), []
    while isinstance(step := shop.think_in_thread(texts, results), shop.Call):
        results.append(shop.run_tool(step))
    print(step)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except RuntimeError as error:
        print(f"it went wrong: {error}", file=sys.stderr)
        sys.exit(3)
