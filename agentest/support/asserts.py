"""Importing files whose `assert` statements tell what they compared, as pytest has it."""

from __future__ import annotations

import ast
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from types import CodeType


class TellingAsserts(SourceFileLoader):
    """Loads a file with its assertions rewritten by pytest: their errors say what was on either side.

    Where there is no `assert`, or no pytest, the file is loaded as any other. What is rewritten is kept in no
    file of bytecode: whoever imports the file otherwise finds it as it is.
    """

    def get_code(self, fullname: str) -> CodeType | None:
        """As Python's own loader, but for assertions."""
        path = self.get_filename(fullname)
        try:
            data = self.get_data(path)
        except OSError:
            return super().get_code(fullname)
        rewritten = _rewritten(data, path) if b"assert" in data else None
        return rewritten or super().get_code(fullname)


def _rewritten(data: bytes, path: str) -> CodeType | None:
    """The code with telling assertions; None where that cannot be had, be it for a mistake in the file."""
    try:
        tree = ast.parse(data, path)
        if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)) or not find_spec("_pytest"):
            return None
        # Not a part of pytest's public interface, and there as long as its rewriting has been.
        from _pytest.assertion.rewrite import rewrite_asserts

        rewrite_asserts(tree, data, path)
        return compile(tree, path, "exec", dont_inherit=True)
    except Exception:  # noqa: BLE001 - then Python says what is wrong with the file, if anything is
        return None
