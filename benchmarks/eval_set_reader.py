"""CPU and memory of reading an evaluation set: `python -m benchmarks.eval_set_reader FILE`, printed as JSON.

What is imported is imported before. Memory is what the process has grown by at its largest, the set included.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from time import process_time

from agentest.plugins.adk.formats.set_reader import read_eval_set
from benchmarks.process import RSS_UNIT_BYTES


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT_BYTES


def main() -> None:
    """Entry point of the process that reads."""
    file = Path(sys.argv[1])
    before_bytes, before_s = _peak_bytes(), process_time()
    read = read_eval_set(file)
    cpu_s, grown_bytes = process_time() - before_s, _peak_bytes() - before_bytes
    print(json.dumps({"cases": len(read.eval_set.eval_cases), "cpu_s": cpu_s, "grown_bytes": grown_bytes}))


if __name__ == "__main__":
    main()
