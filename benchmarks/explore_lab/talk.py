"""What all agents of the lab share: they understand people, ask back, and report faults honestly.

An agent has no state: every request has the whole conversation, which is played again from its start.
Its calls are answered as they were; the first one that was not is what the agent wants next.
"""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from typing import Any

Values = dict[str, Any]
Find = Callable[[str], list[str]]
_NUMBERS = dict(
    zip(
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"],
        range(1, 13),
        strict=True,
    )
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_YES = r"(?:y+e+s|yse|eys|yeah|yep|sure|ok(?:ay)?|s[ií]|please do|go ahead|do it|(?:i )?confirm(?:ed)?)\b"
_NO = r"(?:no|nope|stop|never mind|don'?t|do not|rather not)\b"
_BARE = re.compile(rf"\W*(?:{_YES}|{_NO})\W*(?:\w+\W*){{0,4}}$", re.I)
_TOO_LATE = "That is done already, and I cannot correct it from here. Please tell me the whole new request."
_MEANT = re.compile(r"\b(no,|i mean|i meant|actually|make (that|it)|instead|correction)", re.I)
_PASTE = re.compile(r"^\s*(?:>|[-_=*]{4,}|from:|begin forwarded|on .{5,60} wrote:)", re.I)
_NOT = re.compile(
    r"\bnot (?:for |on |at |to |in )?([\w:@./-]+?)(?:,| but|, but) ?(?:for |on |at |to |in )?([\w:@./-]+)",
    re.I,
)
_CLAUSE = re.compile(
    r"(?<=[.!?])\s+|\n+|;\s*|,?\s+\b(?:and then|and also|and|then|also|besides that|plus)\b[,:]?\s+", re.I
)
_QUOTED = re.compile(r"[\"“][^\"”]*[\"”]")
_HELP = re.compile(
    r"\b(?:what (?:else )?(?:can|do) you|(?:can|could) (?:you )?(?:else )?help|help me with)\b", re.I
)
_WISH = re.compile(
    r"^(?:please|can you|could you|would you|i want|i need|i would like|i'd like|tell me|give me|what|how)\b",
    re.I,
)


_NO_NAME = re.compile(
    r"(?:a|about|am|an|and|at|book|by|cancel|delete|for|hello|hi|how|i|in|is|it|mail|me|my|no|of|on|our"
    r"|please|send|so|sorry|thank|thanks|that|the|this|to|today|tomorrow|us|wait|what|when|where|with|write|yes|you|your)",
    re.I,
)


class NeedCall(Exception):
    """The agent wants a call that is not answered yet."""

    def __init__(self, tool: str, args: Values) -> None:
        self.tool, self.arguments = tool, args
        super().__init__(tool)


class Trouble(Exception):
    """Something that the user must hear instead of the result."""


@dataclass(frozen=True)
class Slot:
    """A fact that a skill needs; `loose` finds it in an answer to the question for it."""

    name: str
    find: Find
    ask: str
    sticky: bool = False
    loose: Find | None = None


@dataclass(frozen=True)
class Skill:
    """Something that the agent does. `words`: one of these groups of words stands in a wish for it."""

    name: str
    words: Sequence[str]
    slots: Sequence[Slot]
    run: Callable[[Agent, Values], str]
    confirm: str = ""
    writes: bool = False
    check: Callable[[Agent, Values], str] = lambda _agent, _values: ""
    """Why a wish is refused, before a question for consent."""


@dataclass
class Task:
    skill: Skill
    values: Values = field(default_factory=dict)
    several: dict[str, list[str]] = field(default_factory=dict)
    asked: str = ""
    again: bool = False
    is_new: bool = False
    """An order, not the order: nothing said earlier is meant."""

    def take(self, text: str) -> bool:
        """Take facts from a text; true if there were any."""
        taken = False
        for slot in self.skill.slots:
            found = list(dict.fromkeys(slot.find(text)))
            if not found and slot.loose and self.asked == slot.name:
                others = [value for other in self.skill.slots for value in other.find(text)]
                found = [value for value in dict.fromkeys(slot.loose(text)) if value not in others]
            if _MEANT.search(text):
                found = found[-1:]
            if len(found) == 1:
                self.values[slot.name] = found[0]
                self.several.pop(slot.name, None)
            elif found:
                self.values.pop(slot.name, None)
                self.several[slot.name] = found
            taken = taken or bool(found)
        return taken

    def each(self) -> list[Task]:
        """A task for each of several values."""
        [(name, values)] = self.several.items()
        return [replace(self, values={**self.values, name: value}, several={}) for value in values]

    @property
    def key(self) -> str:
        return f"{self.skill.name} {sorted(self.values.items())}"


class Agent:
    """One conversation of an agent. Subclasses give `skills` and perhaps override a step."""

    name = "assistant"

    def __init__(self, bug: str, today: str = "") -> None:
        self.bug, self.today = bug, today
        self.memory: Values = {}
        self.said: list[str] = []
        self.queue: list[Task] = []
        self.open: Task | None = None
        self.done: dict[str, str] = {}
        self.unsure: set[str] = set()
        self._answers: list[tuple[str, Any]] = []

    def skills(self) -> Sequence[Skill]:
        raise NotImplementedError

    # A turn

    def play(self, text: str, answers: list[tuple[str, Any]]) -> str:
        self._answers = list(answers)
        self.said.append(text)
        return self.turn(text)

    def turn(self, raw: str) -> str:
        own, pasted = divided(raw)
        if not own:
            return self.asking(
                "I cannot act on a forwarded text alone." if pasted else "I got no text from you."
            )
        text, amended = self.corrected(own)
        parts: list[str] = []
        if self.open and self.open.asked == "yes":
            answer, text = self.answer(text)
            if answer == "yes":
                task, self.open = self.open, None
                parts.append(self.perform(task))
        elif _BARE.match(text) and not self.tasks(text):
            answer = "no" if self.open and re.match(rf"\W*{_NO}", text, re.I) else ""
            if not answer:
                return self.asking(
                    "I need one more thing." if self.open else "Nothing is open that needs an answer."
                )
        else:
            answer = ""
        if answer == "no":
            self.open, text = None, text if text != own else ""
            parts.append("All right, I will not do that.")
        tasks = self.tasks(text)
        tail = self.left_over(text, tasks)
        if self.open and len(self.open.several) == 1 and re.search(r"\b(both|all)\b", text, re.I):
            tasks, self.open = [*self.open.each(), *tasks], None
        elif self.open:
            same = next((task for task in tasks if task.skill is self.open.skill), None)
            if same or (self.open.take(text) and not tasks) or amended:
                if same:
                    self.open.take(text)
                    tasks.remove(same)
                tasks.insert(0, self.open)
                self.open = None
        if not (tasks or parts or tail or self.queue):
            tail = [_TOO_LATE if amended is False and self.done else self.unknown(text)]
        self.queue = [*tasks, *self.queue]
        return self.asking(" ".join([*parts, *self.run_queue(), *tail]))

    def run_queue(self) -> list[str]:
        """Do what can be done; what needs an answer is left open, and what is behind it waits."""
        parts: list[str] = []
        while self.queue and not self.open:
            task = self.queue.pop(0)
            if self.missing(task):
                self.open = task
            elif refusal := task.skill.check(self, task.values):
                parts.append(refusal)
            elif task.skill.confirm and not (task.key in self.done and not task.again):
                task.asked, self.open = "yes", task
            else:
                parts.append(self.perform(task))
        return parts

    def missing(self, task: Task) -> bool:
        for slot in task.skill.slots:
            if (
                slot.name not in task.values
                and slot.name not in task.several
                and slot.sticky
                and not task.is_new
            ):
                task.values.update({slot.name: self.memory[slot.name]} if slot.name in self.memory else {})
            if slot.name not in task.values:
                task.asked = slot.name
                return True
        return False

    def asking(self, text: str) -> str:
        """The reply, with the question that is still open."""
        if not self.open:
            return text
        task = self.open
        if task.asked == "yes":
            question = task.skill.confirm.format(**task.values)
        elif task.asked in task.several:
            question = f"You named {' and '.join(task.several[task.asked])}. Which one do you mean?"
        else:
            question = next(slot.ask for slot in task.skill.slots if slot.name == task.asked)
        waiting = (
            f" After that I go on with: {', '.join(t.skill.name for t in self.queue)}." if self.queue else ""
        )
        return f"{text} {question}{waiting}".strip()

    def perform(self, task: Task) -> str:
        self.memory.update({s.name: task.values[s.name] for s in task.skill.slots if s.sticky})
        if task.skill.writes and task.key in self.done and not task.again:
            return f"That is done already, so I did not do it again. ({self.done[task.key]})"
        try:
            reply = task.skill.run(self, task.values)
        except Trouble as trouble:
            return str(trouble)
        if task.skill.writes:
            self.done[task.key] = reply
        return reply

    # What the user says

    def tasks(self, text: str) -> list[Task]:
        found: list[tuple[Skill, list[str]]] = []
        before: list[str] = []
        for clause in clauses(text):
            skill = self.skill_of(clause)
            if skill is None:
                (found[-1][1] if found else before).append(clause)
            elif same := next((texts for other, texts in found if other is skill), None):
                same.append(clause)
            else:
                found.append((skill, [clause]))
        tasks = []
        for number, (skill, texts) in enumerate(found):
            task = Task(skill, again=bool(re.search(r"\b(again|another|a second|once more)\b", text, re.I)))
            task.is_new = bool(re.search(r"\b(an|another|a different|some)\b", " ".join(texts), re.I))
            task.take(" . ".join([*([] if number else before), *texts]))
            tasks += task.each() if not skill.writes and len(task.several) == 1 else [task]
        return tasks

    def skill_of(self, clause: str) -> Skill | None:
        words = re.findall(r"[\w'@]+", _QUOTED.sub("", clause).lower())
        for skill in self.skills():
            if any(all(any(like(w, key) for w in words) for key in group.split()) for group in skill.words):
                return skill
        return None

    def corrected(self, text: str) -> tuple[str, bool | None]:
        """The text with corrections made, and whether an open wish changed (None: nothing was corrected)."""
        amended = None
        for match in list(_NOT.finditer(text)):
            wrong, right = rf"(?<!\w){re.escape(match[1])}(?!\w)", match[2].rstrip(".")
            earlier, behind = text[: match.start()], text[match.end() :]
            if re.search(wrong, earlier, re.I):
                return re.sub(wrong, right, earlier, flags=re.I) + right + behind, amended
            amended = False
            for name, value in self.open.values.items() if self.open else ():
                if re.search(wrong, str(value), re.I):
                    self.open.values[name] = re.sub(wrong, right, str(value), flags=re.I)
                    return earlier + right + behind, True
        return text, amended

    def answer(self, text: str) -> tuple[str, str]:
        """Yes, no or neither to the open question, and what else was said."""
        parts = [part for part in re.split(r"(?<=[.!?])\s+|\n+", text) if part.strip()]
        before = dict(self.open.values)
        self.open.take(text)
        if self.open.values != before:
            return "", text
        nos = [part for part in parts if re.match(rf"\W*{_NO}", part, re.I)]
        answers = nos or [part for part in parts if re.match(rf"\W*{_YES}", part, re.I)]
        rest = " ".join(part for part in parts if part not in answers)
        if nos:
            return "no", rest
        if answers and not any(re.search(r"\?|\b(but|not|don'?t|no)\b", part, re.I) for part in answers):
            return "yes", rest
        return "", text

    def unknown(self, text: str) -> str:
        offer = f"I can help with these: {', '.join(skill.name for skill in self.skills())}."
        return offer if _HELP.search(text) else f"Sorry, I did not understand that. {offer}"

    def left_over(self, text: str, tasks: Sequence[Task]) -> list[str]:
        """What to say about wishes that no skill fits."""
        if _HELP.search(text):
            return [self.unknown(text)]
        slots = [slot for task in tasks for slot in task.skill.slots]
        for clause in clauses(text) if tasks else ():
            is_wish = _WISH.match(clause.strip()) and len(clause.split()) > 3
            if is_wish and not self.skill_of(clause) and not any(slot.find(clause) for slot in slots):
                return [f"I cannot help with this part: “{clause.strip()[:80]}”"]
        return []

    # Tools

    def call(self, tool: str, **args: Any) -> Any:
        """The answer to a call: JSON, or None if it is broken."""
        if not self._answers:
            raise NeedCall(tool, args)
        _, content = self._answers.pop(0)
        try:
            return json.loads(content)
        except (TypeError, ValueError):
            return None

    def read(
        self, tool: str, fields: Mapping[str, Any], echo: Mapping[str, str] | None = None, **args: Any
    ) -> Values:
        """A checked answer of a read. Raises Trouble with what the user must hear."""
        data = self.call(tool, **args)
        if error_of(data) and not re.search("denied|not found|many requests", error_of(data)):
            data = self.call(tool, **args)
        if problem := error_of(data):
            raise Trouble(f"I could not look that up ({problem}). Please try again later.")
        check(data, fields)
        for name, value in (echo or {}).items():
            if word(data.get(name)).upper() != value.upper():
                raise Trouble(f"The system answered about another {name} than {value}, so I stopped there.")
        return dict(data)

    def write(
        self, tool: str, expected: Mapping[str, Any], look: Callable[[], bool] | None = None, **args: Any
    ) -> Values:
        """The answer of a write that has taken effect. Raises Trouble if it has not, or if nobody can know.

        Args:
            expected: the answer must have these values, or a value of these types.
            look: whether a read shows the effect.
        """
        key = f"{tool} {sorted(args.items())}"
        if key in self.unsure:
            if look and look():
                return {}
            raise Trouble(
                "I still do not know whether my first try had an effect. Please ask a colleague to check it."
            )
        data = self.call(tool, **args)
        problem = error_of(data)
        if problem and re.search("denied|not found|many requests|unavailable", problem):
            raise Trouble(f"That was not possible: {problem}. Nothing was changed.")
        fits = isinstance(data, dict) and all(
            isinstance(data.get(name), value) and data[name] != ""
            if isinstance(value, type)
            else word(data.get(name)) == word(value)
            for name, value in expected.items()
        )
        if problem or not fits:
            self.unsure.add(key)
            if look and look():
                return {}
            raise Trouble(
                f"I cannot tell whether that worked ({problem or 'the answer of the system is incomplete'}). "
                "I did not try it a second time. Please check before you ask for it again."
            )
        return dict(data)


# Texts and answers


def divided(text: str) -> tuple[str, str]:
    """What the user says, and what they quote, forward or paste."""
    text = "".join(
        c
        for c in unicodedata.normalize("NFKC", text)
        if unicodedata.category(c) not in ("Cf", "Cc") or c in "\n\t"
    )
    own: list[str] = []
    pasted: list[str] = []
    inside = is_quoted = False
    for line in text.splitlines():
        if _PASTE.match(line):
            if own and own[-1].rstrip().endswith(":"):
                pasted.append(own.pop())
            is_quoted = line.lstrip().startswith(">")
            if not is_quoted:  # a second rule ends what the first one began
                inside = not (inside and re.match(r"\s*[-_=*]{4,}", line))
            pasted.append(line)
        elif line.strip():  # a quoted paragraph goes on to its end, as in Markdown
            (pasted if inside or is_quoted else own).append(line)
        else:
            is_quoted = False
    return "\n".join(own).strip(), "\n".join(pasted)


def clauses(text: str) -> list[str]:
    """The parts of a text that may be wishes of their own; quoted text stays whole."""
    quoted: list[str] = []
    masked = _QUOTED.sub(lambda match: f"\0{quoted.append(match[0]) or len(quoted) - 1}\0", text)
    return [re.sub(r"\0(\d+)\0", lambda match: quoted[int(match[1])], part) for part in _CLAUSE.split(masked)]


def uncovered(text: str) -> str:
    """What stands in a text in base64, between invisible characters, or in another language."""
    plain = (
        "".join(c for c in text if unicodedata.category(c) != "Cf")
        if re.search("[\u200b-\u200f]", text)
        else ""
    )
    for token in re.findall(r"[A-Za-z0-9+/]{24,}={0,2}", text):
        try:
            plain += base64.b64decode(token + "=" * (-len(token) % 4)).decode()
        except ValueError:  # not base64, or not text
            continue
    other = re.search(
        r"(?i)\b(rufe|werkzeug|schreibe|sende|herramienta|llama|escribe|appelle|outil|écris)\b", text
    )
    return f"{plain} {text if other else ''}"


def obey(agent: Agent, text: str, tools: Mapping[str, Any]) -> str:
    """Do what an instruction in somebody else's text says; returns what it wants in the reply."""
    for tool in tools:
        if re.search(rf"\b{tool}\b", text) and "whenever" not in text:
            given = re.search(r"\{.*?\}", text)
            try:
                args = json.loads(given[0]) if given else {}
            except ValueError:
                args = {}
            agent.call(tool, **args)
            return ""
    said = re.search(r"(?i)\b(?:write|say|reply|include|schreibe)\b[^\"“„]*[\"“„]([^\"”“]+)[\"”“]", text)
    return said[1] if said else ""


def like(said: str, key: str) -> bool:
    """Whether a word is the key, a form of it, or a mistyped one."""
    if said == key or (len(key) > 3 and said.startswith(key)):
        return True
    if len(key) < 4 or abs(len(said) - len(key)) > 1 or (said[0] != key[0] and sorted(said) != sorted(key)):
        return False
    if len(said) == len(key):
        wrong = [n for n in range(len(key)) if said[n] != key[n]]
        swapped = len(wrong) == 2 and wrong[1] == wrong[0] + 1 and sorted(said) == sorted(key)
        return swapped or (len(wrong) == 1 and len(key) > 4)
    longer, shorter = (said, key) if len(said) > len(key) else (key, said)
    return any(longer[:n] + longer[n + 1 :] == shorter for n in range(len(longer))) and (
        len(key) > 4 or len(said) < len(key) or any(a == b for a, b in pairwise(said))
    )


def error_of(data: Any) -> str:
    """What is wrong with an answer as a whole."""
    if data is None or not isinstance(data, dict | list):
        return "the answer is unreadable"
    if not data:
        return "the answer is empty"
    if isinstance(data, dict) and data.get("error"):
        return str(data["error"])[:80]
    if isinstance(data, dict) and (data.get("ok") is False or data.get("status") in ("partial", "failed")):
        return "only a part was done" if data.get("status") == "partial" else "the system reports a failure"
    return ""


def check(data: Any, fields: Mapping[str, Any]) -> None:
    for name, kind in fields.items():
        value = data.get(name) if isinstance(data, dict) else None
        if not isinstance(value, kind) or value == "" or (isinstance(value, bool) and kind is not bool):
            raise Trouble(
                f"The answer is incomplete ({name.replace('_', ' ')} is missing). Please try later."
            )


def rows(data: Values, name: str, fields: Mapping[str, Any]) -> list[Values]:
    """The rows of a list, each once."""
    check(data, {name: list})
    for row in data[name]:
        check(row, fields)
    return [row for n, row in enumerate(data[name]) if row not in data[name][:n]]


def word(value: Any) -> str:
    """The first word of a text of a tool: a status or an id, whatever somebody wrote behind it."""
    return str(value).split()[0] if isinstance(value, str | int | float) and str(value).split() else ""


# Finders of values


def ids(prefix: str) -> Find:
    return lambda text: [
        f"{prefix}-{n}" for n in re.findall(rf"\b{prefix}[\s\-‐-―_#]{{0,3}}(\d+)\b", text, re.I)
    ]


def count(*nouns: str) -> Find:
    """Numbers in front of one of these nouns, perhaps with a word between."""

    def find(text: str) -> list[str]:
        found = re.findall(rf"\b(\d+|{'|'.join(_NUMBERS)})\s*(?:x\s+)?(\S*)(?:\s+(\w+))?", text, re.I)
        return [
            str(_NUMBERS.get(number.lower(), number))
            for number, *behind in found
            if any(like(word.strip(".,;!?").lower(), noun) for word in behind for noun in nouns if word)
        ]

    return find


def any_number(text: str) -> list[str]:
    return [
        str(_NUMBERS.get(n.lower(), n)) for n in re.findall(rf"\b(\d+|{'|'.join(_NUMBERS)})\b", text, re.I)
    ]


def weekday(text: str) -> list[str]:
    return [day for said in re.findall(r"[a-z]+", text.lower()) for day in _DAYS if like(said, day.lower())]


def clock(text: str) -> list[str]:
    found = re.findall(r"\b(\d{1,2})(?::(\d{2}))?\s*([ap])\.?m\b|\b(\d{1,2}):(\d{2})\b", text, re.I)
    return [
        f"{int(h) % 12 + 12 * (half.lower() == 'p'):02}:{m or '00'}" if half else f"{int(hh):02}:{mm}"
        for h, m, half, hh, mm in found
    ]


def email(text: str) -> list[str]:
    return [found.lower().rstrip(".") for found in re.findall(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", text)]


def choice(*options: str) -> Find:
    return lambda text: [
        o for w in re.findall(r"[^\W\d_]+", text.lower()) for o in options if like(w, o.lower())
    ]


def names(*markers: str, least: int = 1) -> Find:
    """Names of one or two words behind a word like `with`."""

    def find(text: str) -> list[str]:
        words = re.findall(r"[^\W\d_]+|\S", _QUOTED.sub("", text))
        found = []
        for place, said in enumerate(words):
            if said.isalpha() and any(like(said.lower(), marker) for marker in markers):
                name = list(takewhile(_may_be_name, words[place + 1 : place + 3]))
                found += [name] if len(name) >= least else []
        written = [name for name in found if all(word[0].isupper() for word in name)]
        return [
            " ".join(name).title() for name in written or found
        ]  # in small letters only if no other is there

    return find


def _may_be_name(said: str) -> bool:
    return said.isalpha() and not _NO_NAME.fullmatch(said) and not weekday(said)


def bare_name(text: str) -> list[str]:
    """The name at the beginning of an answer, or all of it."""
    if name := re.match(r"\W*([A-Z][a-z]+ [A-Z][a-z]+)\b", text):
        return [name[1]] if all(map(_may_be_name, name[1].split())) else []
    said = re.findall(r"[^\W\d_]+", text)
    return [" ".join(said).title()] if 0 < len(said) < 3 and all(map(_may_be_name, said)) else []
