"""Print `agentest.mocks.wrap` and what it needs, for an agent where Agentest is not installed.

It needs only Python: `python -m agentest.mocks.function_tools > agentest_tools.py`.
"""

import inspect
import sys

from agentest.plugin import public_name

if __name__ == "__main__":
    wrap = public_name("agentest.mocks", "wrap", "frameworks")
    sys.stdout.write(inspect.getsource(sys.modules[wrap.__module__]))
