"""Write a module of mocks: its source, and the files with answers that are too long for it."""

from __future__ import annotations

import builtins
import json
import keyword
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentest.plugins.authoring.recorded_calls import (
    MockParameter,
    RecordedCase,
    RecordedTool,
    RecordedToolAnswer,
    call_key,
    names_used,
    parameters,
)
from agentest.scenarios.python_formatting import (
    SourceItem,
    SourceNode,
    StringLiteral,
    bracketed,
    call_of,
    fits_line,
    literal,
    node,
    rows,
)
from agentest.support.errors import UsageError
from agentest.support.files import write_for_user
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, shortened

NOT_RECORDED, IN_TURN, FROM_FILE = "_not_recorded", "_in_turn", "_answer_in"
"""Helpers of the generated module, included as needed."""
_LONGEST_ANSWER = 8_000
"""Maximum number of characters of JSON in the source. A longer answer is written to a file."""
_BODY = 4
_DOC_CHARS = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class MockSource:
    """The source code of the mock of one tool."""

    function: tuple[str, ...] = ()  # the lines of its function; empty if it needs none
    value: SourceNode  # its value in the dict of tools
    names: frozenset[str]  # names that it uses: of `typing`, `agentest`, and helpers


class _MockWriter:
    """Writes the mock of one tool. If it needs a function, `name` is the function's name."""

    def __init__(self, tool: RecordedTool, name: str, store: Callable[[str, str], str]) -> None:
        self._tool = tool
        self._name = name
        self._store = store
        self._names: set[str] = set()

    def mock(self) -> MockSource:
        tool, known = self._tool, parameters(self._tool)
        function: tuple[str, ...] = ()
        if tool.same is not None and (tool.parameters is None or known is None):
            value = self._value((tool.same,))
        elif tool.same is None and len(tool.cases) == 1:
            value = self._value(tool.cases[0].answers)
        else:
            typed = known if known is not None and self._can_match(known) else None
            value, function = self._name, (*self._head(typed), *self._docstring(), *self._body(typed))
        return MockSource(function=function, value=value, names=frozenset(self._names))

    def _value(self, answers: Sequence[RecordedToolAnswer]) -> SourceNode:
        nodes = list(map(self._step, answers))
        if len(nodes) == 1 and not answers[0].error:
            return nodes[0]
        self._names.add("sequence")
        return call_of("sequence", nodes)

    def _can_match(self, known: Sequence[MockParameter]) -> bool:
        if self._tool.same is not None:
            return True
        cases = [case.args or {} for case in self._tool.cases]
        plain = all(v is None or isinstance(v, str | int | float) for args in cases for v in args.values())
        apart = len({call_key({p.name: args.get(p.name) for p in known}) for args in cases}) == len(cases)
        return plain and apart and all(fits_line(self._case_row(case, known)) for case in self._tool.cases)

    def _head(self, known: Sequence[MockParameter] | None) -> Iterator[str]:
        turns = self._tool.same is None and any(len(case.answers) > 1 for case in self._tool.cases)
        sources = [each.source for each in known] if known is not None else ["args: dict[str, Any]"]
        self._names |= {"Any"} if known is None else set(names_used(known))
        if turns:
            self._names.add("MockContext")
            sources.insert(0 if known is not None else 1, "ctx: MockContext")
        result = self._result_type()
        contents = tuple(map(SourceItem, sources))
        return rows(SourceItem(bracketed(f"def {self._name}(", contents, f") -> {result}:")))

    def _result_type(self) -> str:
        answers = [answer for case in self._tool.cases for answer in case.answers]
        values = [answer.value for answer in answers if not answer.error]
        plain = all(len(case.answers) == 1 for case in self._tool.cases)
        if not values and plain:
            self._names.add("NoReturn")
            return "NoReturn"
        if values and plain and not any(map(_needs_file, values)):
            for kind, name in ((str, "str"), (dict, "dict[str, Any]"), (list, "list[Any]")):
                if all(isinstance(value, kind) for value in values):
                    self._names |= {"Any"} if "Any" in name else set()
                    return name
        self._names.add("Any")
        return "Any"

    def _docstring(self) -> Iterator[str]:
        about = shortened(self._tool.description, _DOC_CHARS)
        others = "any call has its answer" if self._tool.same is not None else "any other is an error"
        recorded = f"Recorded: {count(self._tool.calls, 'call')}; {others}."
        indent = " " * _BODY
        if not about:
            yield f'{indent}"""{recorded}"""'
            return
        about = about.replace("\\", "\\\\").replace('"""', "'''")
        about = about[:-1] + '\\"' if about.endswith('"') else about
        yield f'{indent}"""{about}'
        yield ""
        yield indent + recorded
        yield f'{indent}"""'

    def _body(self, known: Sequence[MockParameter] | None) -> Iterator[str]:
        if self._tool.same is not None:
            yield from self._answer_rows((self._tool.same,), _BODY)
            return
        self._names.add(NOT_RECORDED)
        if known is None:
            yield from self._by_args()
            named: dict[str, SourceNode] = {}
        else:
            yield from self._by_match(known)
            named = {name: name for name in self._subject(known)}
        rest = ["**args"] if known is None else []
        call = call_of(NOT_RECORDED, [StringLiteral(self._tool.name), *rest], named)
        yield from rows(SourceItem(call, "raise "), _BODY)

    def _subject(self, known: Sequence[MockParameter]) -> list[str]:
        return [each.name for each in known if each.name not in self._tool.hidden]

    def _by_match(self, known: Sequence[MockParameter]) -> Iterator[str]:
        yield from rows(SourceItem(", ".join(self._subject(known)), "match "), _BODY, ":")
        # `case True` must precede `case 1`, which also matches True.
        for case in sorted(
            self._tool.cases,
            key=lambda case: not any(isinstance(value, bool) for value in (case.args or {}).values()),
        ):
            yield self._case_row(case, known)
            yield from self._answer_rows(case.answers, 3 * _BODY, case)

    def _case_row(self, case: RecordedCase, known: Sequence[MockParameter]) -> str:
        args = case.args or {}
        made = [node(args[name]) if name in args else "None" for name in self._subject(known)]
        patterns = [literal(each.value) if isinstance(each, StringLiteral) else str(each) for each in made]
        return f"{' ' * 2 * _BODY}case {', '.join(patterns)}:"

    def _by_args(self) -> Iterator[str]:
        if self._tool.hidden:
            names = ", ".join(literal(name) for name in sorted(self._tool.hidden))
            choice = f"{{key: value for key, value in args.items() if key not in ({names},)}}"
            yield f"{' ' * _BODY}args = {choice}"
        calls = [dict(case.args or {}) for case in self._tool.cases]
        # Python considers two calls equal if one has True and the other 1.
        alike = any(call == other for i, call in enumerate(calls) for other in calls[:i])
        for case, args in zip(self._tool.cases, calls, strict=True):
            condition = SourceItem(node(args), "if args == ")
            if alike:
                self._names.add("json")
                text = StringLiteral(json.dumps(args, sort_keys=True))
                condition = SourceItem(text, "if json.dumps(args, sort_keys=True) == ")
            yield from rows(condition, _BODY, ":")
            yield from self._answer_rows(case.answers, 2 * _BODY, case)

    def _answer_rows(
        self, answers: Sequence[RecordedToolAnswer], indent: int, case: RecordedCase | None = None
    ) -> Iterator[str]:
        if len(answers) == 1 or case is None:
            lead = "raise " if answers[0].error else "return "
            yield from rows(SourceItem(self._step(answers[0]), lead), indent)
            return
        self._names.add(IN_TURN)
        label = StringLiteral(f"{self._name} {self._tool.cases.index(case) + 1}")
        call = call_of(IN_TURN, ["ctx", label, *map(self._step, answers)])
        yield from rows(SourceItem(call, "return "), indent)

    def _step(self, answer: RecordedToolAnswer) -> SourceNode:
        if not answer.error:
            return self._node(answer.value)
        if answer.status is None:
            return call_of("RuntimeError", [StringLiteral(answer.error)])
        self._names.add("HttpResponse")
        return call_of("HttpResponse", [str(answer.status), self._node(answer.value)])

    def _node(self, value: Any) -> SourceNode:
        if not _needs_file(value):
            return node(value)
        self._names.add(FROM_FILE)
        file = self._store(self._tool.name, json.dumps(value, ensure_ascii=False, indent=2) + "\n")
        return f"{FROM_FILE}({literal(file)})"


def _needs_file(value: Any) -> bool:
    with suppress(ValueError):
        node(value)
        return len(json.dumps(value, ensure_ascii=False)) > _LONGEST_ANSWER
    return True


_OF_TYPING = ("Any", "Literal", "NoReturn")
_OF_AGENTEST = ("HttpResponse", "MockContext", "MockError", "sequence")
_NEEDS = {
    NOT_RECORDED: ("Any", "MockError"),
    IN_TURN: ("Any", "MockContext"),
    FROM_FILE: ("Any", "json", "Path"),
}
_COMMENT_CHARS = 80
_TAKEN = frozenset({"tools", "json", "Path", *_OF_TYPING, *_OF_AGENTEST, *dir(builtins)})

_SOURCE = {
    NOT_RECORDED: '''def _not_recorded(tool: str, /, **args: Any) -> MockError:
    """Ends the conversation: what the real tool answers to this call is not known."""
    call = ", ".join(f"{name}={value!r}" for name, value in args.items())
    return MockError(f"no answer was recorded for {tool}({call}); add it to {__file__}")''',
    IN_TURN: '''def _in_turn(ctx: MockContext, call: str, *answers: Any) -> Any:
    """The next answer to the same call; each conversation begins with the first, the last is repeated."""
    number = ctx.state.get(call, 0)
    ctx.state[call] = number + 1
    answer = answers[min(number, len(answers) - 1)]
    if isinstance(answer, Exception):
        raise answer
    return answer''',
    FROM_FILE: '''def _answer_in(file: str) -> Any:
    """A long answer, which has a file of its own."""
    return json.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))''',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MockModule:
    """The files to write."""

    source: str
    files: dict[str, str] = field(default_factory=dict)  # path relative to the module's folder → content


def module_of(tools: Sequence[RecordedTool], stem: str) -> MockModule:
    """Return the module with these mocks. `stem` is its file name without `.py`."""
    files: dict[str, str] = {}
    store, names = partial(_stored, files, f"{stem}_answers"), _function_names(tools)
    mocks = [_MockWriter(tool, name, store).mock() for tool, name in zip(tools, names, strict=True)]
    used = {"Any", *(name for mock in mocks for name in mock.names)}
    used |= {need for name in used for need in _NEEDS.get(name, ())}
    about = (
        '"""Mocks that answer as the real tools did when `agentest record-tools` recorded them.\n\n'
        "The file is yours: rename, shorten and change what is here. In a scenario:\n\n"
        f"    from {stem} import tools\n\n"
        '    scenario("…", tools=tools, …)\n"""'
    )
    parts = [
        about,
        *_imports(used),
        *("\n".join(mock.function) for mock in mocks if mock.function),
        *(source for name, source in _SOURCE.items() if name in used),
        "\n".join(_dict(tools, mocks)),
    ]
    source = about
    for before, part in pairwise(parts):
        # Two blank lines around functions, and one elsewhere.
        wide = part.startswith("def ") or before.startswith("def ")
        source += ("\n\n\n" if wide else "\n\n") + part
    return MockModule(source=f"{source}\n", files=files)


def _imports(used: set[str]) -> Iterator[str]:
    standard = ["import json"] if "json" in used else []
    standard += ["from pathlib import Path"] if "Path" in used else []
    standard.append("from typing import " + ", ".join(name for name in _OF_TYPING if name in used))
    yield "\n".join(standard)
    if ours := [name for name in _OF_AGENTEST if name in used]:
        yield "from agentest import " + ", ".join(ours)


def _dict(tools: Sequence[RecordedTool], mocks: Sequence[MockSource]) -> Iterator[str]:
    if not tools:
        yield "tools: dict[str, Any] = {}"
        return
    yield "tools: dict[str, Any] = {"
    for tool, mock in zip(tools, mocks, strict=True):
        if not mock.function:
            args = tool.cases[0].args
            arguments = "…" if args is None else ", ".join(f"{key}={value!r}" for key, value in args.items())
            yield f"    # {shortened(f'{tool.name}({arguments})', _COMMENT_CHARS)}"
        yield from rows(SourceItem(mock.value, f"{literal(tool.name)}: "), 4, ",")
    yield "}"


def _function_names(tools: Sequence[RecordedTool]) -> list[str]:
    names: list[str] = []
    for tool in tools:
        base = re.sub(r"\W+", "_", tool.name, flags=re.ASCII).strip("_") or "tool"
        base = f"tool_{base}" if base[0].isdigit() else base
        base = f"{base}_" if keyword.iskeyword(base) or base in _TAKEN else base
        name, number = base, 1
        while name in names:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return names


def _stored(files: dict[str, str], folder: str, tool: str, text: str) -> str:
    """Return the file of an answer, which is added unless another has the same text."""
    base = re.sub(r"[^A-Za-z0-9_-]+", "_", tool)[:60].strip("_") or "tool"
    known = next((name for name, stored in files.items() if stored == text), "")
    return known or (files.setdefault(name := f"{folder}/{base}_{len(files) + 1}.json", text) and name)


DEFAULT = "recorded_tools.py"
_SCENARIO_ENDING = ".sim.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class MockTargets:
    """The paths to write to."""

    module: Path
    scenario: Path | None = None
    force: bool = False  # if True, existing files are replaced

    @property
    def stem(self) -> str:
        return self.module.stem

    @property
    def tool_list(self) -> Path:
        """Return the default path of the list of an MCP server's tools."""
        return self.module.with_suffix(".mcp.json")


def targets(
    output: Path | None,
    scenario: Path | None,
    folder: Path,
    show: Callable[[Path], str],
    *,
    force: bool | None,
) -> MockTargets:
    """Choose the files to write. Raises UsageError before the real tools are called, if that is not possible.

    Args:
        output: path of the module; None for next to the scenario file, else in `folder`.
        show: formats a path as the user would write it.
        force: True if existing files may be replaced; None if the command has no such option.
    """
    module = output or (scenario.parent if scenario else folder) / DEFAULT
    is_module = module.suffix == ".py" and module.stem.isidentifier() and not keyword.iskeyword(module.stem)
    if not is_module:
        raise UsageError(f"--output: {show(module)} cannot be imported; name a Python module, like {DEFAULT}")
    if scenario and not scenario.name.endswith(_SCENARIO_ENDING):
        raise UsageError(
            f"--scenario: {show(scenario)} would never be found; its name must end in {_SCENARIO_ENDING}"
        )
    if scenario and scenario.parent.resolve() != module.parent.resolve():
        raise UsageError(
            f"--scenario: {show(scenario)} cannot import {show(module)} from another folder; leave "
            "--output out, or name the same folder"
        )
    for option, path in (("--output", module), ("--scenario", scenario)):
        if path and path.exists() and not force:
            option, way_out = (
                ("--record-tools", "give that file another name first")
                if force is None
                else (option, f"--force replaces it, {option} names another file")
            )
            raise UsageError(f"{option}: {show(path)} exists already, and nothing was recorded; {way_out}")
    if not module.parent.is_dir():
        raise UsageError(
            f"{show(scenario or module)}: the folder {show(module.parent)} does not exist; make it first"
        )
    return MockTargets(module=module, scenario=scenario, force=bool(force))


def write_module(module: MockModule, at: MockTargets) -> None:
    """Write the module and its long answers. Raises UsageError."""
    for name, text in module.files.items():
        write_for_user(at.module.parent / name, text.encode())
    write_for_user(at.module, module.source.encode())
