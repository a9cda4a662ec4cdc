"""The common parts of Python servers: their options, and uvicorn."""

from __future__ import annotations

import argparse
from typing import Any

import uvicorn


def options(path: str = "/", **more: Any) -> argparse.Namespace:
    """`--port` and `--path`, and further options with their defaults: true or false, or a text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", default=path, help="where the protocol is spoken")
    for name, default in more.items():
        option = "--" + name.replace("_", "-")
        if isinstance(default, bool):
            parser.add_argument(option, action="store_true")
        else:
            parser.add_argument(option, default=default)
    return parser.parse_args()


def serve(app: Any, port: int) -> None:
    """On loopback. Idle connections are kept: a client on a busy machine must not find them closed."""
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", timeout_keep_alive=600)
