"""Write to standard output and standard error so that foreign text cannot control the reader.

There are two such readers. A terminal obeys control characters, and bidi marks and tags hide text. `clean`
and `clean_rows` replace them with visible escapes. GitHub's runner obeys workflow commands in a step's
output: lines that begin with `::`, and `##[` anywhere in a line. `disarmed` inserts a backslash into them.
Our own layout (a column's padding, the first row of a message) may complete a command, so `Output` does this
last, on the exact text that is written, and only under the runner. Only `Output.command` writes commands.

Output of the user's own code is not processed here.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

from agentest.support.errors import OutputError

# Control characters, and invisible characters that reorder, hide or forge text (bidi marks, tags,
# separators).
_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_IN_ASCII = {
    "…": "...",
    "≥": ">=",
    "→": "->",
    "·": "-",
    "–": "-",
    "—": "-",
    "×": "x",
    "±": "+-",
    "κ": "kappa",
    "←": "<-",
    "─": "-",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
}
# The runner compares by language rules, which ignore certain characters: invisible ones, and accents of some
# scripts. Which ones depends on its version, so no character outside of ASCII is trusted. Colors are ignored
# as well, because some log forwarders remove them.
_IGNORED_CHARACTERS = r"(?:[^\t-\r\x1b -~]|\x1b(?:\[[0-9;:]*+m)?)"
_AT_START = re.compile(rf"(\A|[\r\n])((?:[^\S\r\n]|{_IGNORED_CHARACTERS})*+):(?={_IGNORED_CHARACTERS}*+:)")
_ANYWHERE = re.compile(rf"(#{_IGNORED_CHARACTERS}*+)#({_IGNORED_CHARACTERS}*+)\[")
_DISARMED = r"\1#\2\\["
_COLOURS = re.compile(r"\x1b\[[0-9;:]*+m")


def clean(text: str) -> str:
    """Return the text in one row, with visible escapes for what controls a terminal or ends a row."""
    return _CONTROL_CHARACTERS.sub(lambda match: _escaped(match[0]), text.replace("\t", "    "))


def clean_rows(text: str) -> str:
    return "\n".join(map(clean, text.replace("\r\n", "\n").split("\n")))


def without_colours(text: str) -> str:
    """Remove color sequences from a program's output."""
    return _COLOURS.sub("", text)


def is_github_runner(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if GitHub's runner, or a compatible one, reads the output."""
    return environ.get("GITHUB_ACTIONS", "").strip().lower() not in ("", "0", "false")


def disarm_commands(text: str) -> str:
    """Insert a backslash into everything that GitHub's runner would obey as a command."""
    return _ANYWHERE.sub(_DISARMED, _AT_START.sub(r"\1\2\\:", text))


def source(text: str) -> str:
    """Return equivalent JSON or Python whose texts have no commands and control characters."""
    visible = _CONTROL_CHARACTERS.sub(
        lambda match: match[0] if match[0] == "\n" else _in_json(match[0]), text
    )
    return _ANYWHERE.sub(r"\1\\u0023\2[", visible)


def clean_for_command(text: str) -> str:
    """Clean a part of our workflow command. Line breaks stay: commands have their own escapes."""
    visible = _CONTROL_CHARACTERS.sub(lambda match: match[0] if match[0] in "\r\n" else clean(match[0]), text)
    return _ANYWHERE.sub(_DISARMED, visible)


def clean_for_log(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Clean a text that another program prints for us, such as a test runner that shows an exception."""
    return disarm_commands(text) if is_github_runner(environ) else text


def encodable(text: str, encoding: str) -> str:
    """Replace characters that the encoding lacks."""
    if _encodes(text, encoding):
        return text
    return "".join(c if _encodes(c, encoding) else _IN_ASCII.get(c) or _escaped(c) for c in text)


def _encodes(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    except LookupError:
        return text.isascii()
    return True


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _in_json(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def say(text: str, *, end: str = "\n", environ: Mapping[str, str] = os.environ) -> None:
    """Write rows to standard output. Raises OutputError."""
    _send(Output(sys.stdout, environ), clean_rows(text) + end)


def tell(text: str, *, environ: Mapping[str, str] = os.environ, stream: IO[str] | None = None) -> None:
    """Write rows to standard error, or to another stream for it. They are lost if it cannot be written to."""
    with suppress(OutputError):
        _send(Output(stream or sys.stderr, environ), clean_rows(text) + "\n")


def tell_notes(notes: Iterable[str]) -> None:
    """Write each note for the user to standard error."""
    for note in notes:
        tell(f"agentest: {note}")


def rewrite_row(text: str) -> None:
    """Replace the current row of standard error."""
    with suppress(OutputError):
        _send(Output(sys.stderr), f"\r\x1b[K{text}")


def open_in_browser(url: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Open a URL in the user's browser, if a person is at this terminal. Returns whether it was tried."""
    graphical = sys.platform in ("darwin", "win32") or any(
        environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    # A browser in text mode would take over this terminal.
    if not graphical or environ.get("CI") or not sys.stdout.isatty():
        return False
    import webbrowser

    return webbrowser.open(url)


def _send(output: Output, text: str) -> None:
    output.write(encodable(text, output.encoding or "utf-8"))
    output.flush()


class Output:
    """A text stream of ours. Every write is treated as the beginning of a line.

    If the reader has closed the pipe (`agentest run | head`), output is dropped silently, because the rest of
    the work is still needed. If the output cannot be written (a full disk), OutputError is raised once. In
    both cases later output is discarded, so that Python does not fail again when it flushes at exit.
    """

    def __init__(self, stream: IO[str], environ: Mapping[str, str] = os.environ) -> None:
        self._stream = stream
        self._disarms = is_github_runner(environ)

    def write(self, text: str) -> int:
        """Raises OutputError."""
        self._try(self._stream.write, disarm_commands(text) if self._disarms else text)
        return len(text)

    def write_bytes(self, text: str) -> None:
        """Write a document as UTF-8, whatever the terminal supports, because files and programs read it.

        The caller has made it safe with `source` or `clean_rows`. Raises OutputError.
        """
        content = (disarm_commands(text) if self._disarms else text).encode("utf-8", "backslashreplace")
        self.flush()
        buffer = getattr(self._stream, "buffer", None)
        if buffer is None:
            self._try(self._stream.write, content.decode())
        else:
            self._try(buffer.write, content)
        self.flush()

    def command(self, line: str) -> None:
        """Write our workflow command, whose texts are disarmed. Raises OutputError."""
        assert "\n" not in line, line
        self._try(self._stream.write, encodable(line, self.encoding or "utf-8") + "\n")
        self.flush()

    def flush(self) -> None:
        """Raises OutputError."""
        self._try(self._stream.flush)

    def _try(self, act: Any, *arguments: Any) -> None:
        try:
            act(*arguments)
        except BrokenPipeError:
            _discard_output(self._stream)
        except OSError as error:
            raise lost(self._stream, error) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # isatty, encoding, fileno


def lost(stream: IO[str], error: OSError) -> OutputError:
    """Return the error for a stream that cannot be written to, and discard its further output."""
    _discard_output(stream)
    name = "standard error" if stream is sys.stderr else "standard output"
    return OutputError(f"{name} cannot be written to: {error.strerror or error}")


def _discard_output(stream: IO[str]) -> None:
    with suppress(OSError, ValueError, AttributeError):  # it may not be a file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


FIRST_S = 5.0
EVERY_S = 30.0  # seconds between reminders


def pauses() -> Iterator[tuple[float, float]]:
    """Yield each pause before a reminder, and the total seconds after it."""
    passed, pause = 0.0, FIRST_S
    while True:
        passed += pause
        yield pause, passed
        pause = EVERY_S


@contextmanager
def with_reminders(
    what: str, say: Callable[[str], object] = tell, make_done: Callable[[], threading.Event] = threading.Event
) -> Iterator[None]:
    """Run a block that may take long, while another thread prints reminders.

    The thread has ended when the block ends, so processes may be forked again.

    Args:
        what: "reading the configuration and the scenarios".
        make_done: creates the event that ends the thread.
    """
    done = make_done()

    def remind() -> None:
        for pause, passed in pauses():
            if done.wait(pause):
                return
            say(f"agentest: {what}: {passed:.0f} s so far")

    thread = threading.Thread(target=remind, name="agentest reminder", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
