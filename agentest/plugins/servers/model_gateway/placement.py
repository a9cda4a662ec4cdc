"""Decide which conversation a request to the model belongs to, without a guess."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter

from agentest.plugins.servers.model_gateway.conversation import GatewayConversation
from agentest.plugins.servers.model_gateway.wire_form import WireRequest
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import on_one_line

_LEAST_CHARS = 12  # shorter texts count only if they stand alone, because any text may contain them
_MOST_REMEMBERED_CHARS = 4_000
_written_ids = lru_cache(500)(re.compile(r"[\w.:-]{8,}").findall)
"""Returns what may be ids in a text. Each history has the texts of the one before, and a new one."""
Owners = Mapping[str, GatewayConversation | None]
"""Id that was passed on → its conversation; None if several conversations have it."""


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A request that belongs to no certain conversation."""

    why: str
    tool: str | None
    """A tool that it offers and that must not run, so that the request is refused; None if there is none."""
    late: bool = False  # True if it belongs to a conversation that has ended


def place(
    request: WireRequest,
    active: Collection[GatewayConversation],
    ended: Collection[GatewayConversation],
    owners: Owners,
    lane: int | None = None,
) -> GatewayConversation | Unplaced:
    """Return the conversation of a request whose address names none.

    The first that decides: an id that was passed on, the texts of the user and of calls, which sub-agents
    repeat, and that there is only one conversation.

    Args:
        ended: the last conversations that ended. Their agents may still be at work.
        lane: the copy of the agent's server that sent the request, which decides among those under way.
    """
    under_way = active
    if lane is not None:
        active = [each for each in active if each.lane == lane]
        ended = [each for each in ended if each.lane == lane]
    at_work = filter(attrgetter("at_work"), ended)
    if lane is not None:
        # Everything else that a copy sends is of its only conversation, so a short text is no evidence.
        ended = [each for each in ended if len("".join(each.texts[-1:])) >= _LEAST_CHARS]
    owner = _by_id(request, active, owners)
    if owner is None:
        texts = [text for text in map(_read, request.user_texts) if text.text]
        # Those that have ended are no rivals of one that accounts for everything, and there are many.
        rivals = [*active, *filter(_is_rival, ended)]
        owner = _only_teller(texts, rivals) or _by_text(texts, rivals, wholly=True)
        if not isinstance(owner, GatewayConversation):
            owner = _by_text(texts, [*active, *ended])
    if owner is None and len(active) == 1:
        only = next(iter(active))
        # An agent may have jobs that go on after its reply.
        rivals = [
            each
            for each in ended
            if (each.at_work and each.number_at_end >= only.number) or (lane is None and each.has_just_ended)
        ]
        owner = _several([only, *rivals]) if rivals else only
    if isinstance(owner, GatewayConversation):
        if not owner.over:
            return owner
        return Unplaced(
            f"it belongs to {owner.who}, which has ended",
            _mocked(request, [*under_way, owner]) or next(iter(request.tools), None),
            late=True,
        )
    if owner is None:
        number = f"{len(active)} conversations are" if active else "no conversation is"
        where = "" if lane is None else f" with copy {lane} of the agent"
        owner = f"it does not name its conversation, and {number} under way{where}"
    return Unplaced(owner, _mocked(request, [*under_way, *at_work]))


def _mocked(request: WireRequest, conversations: Iterable[GatewayConversation]) -> str | None:
    return next((name for each in conversations for name in request.tools if each.guards(name)), None)


def _several(conversations: Sequence[GatewayConversation]) -> str:
    return f"{len(conversations)} conversations may have made it"


def _by_id(
    request: WireRequest, active: Collection[GatewayConversation], owners: Owners
) -> GatewayConversation | str | None:
    newest_first = reversed(request.history.texts)
    found = _owners(request.ids, owners) or _owners(
        dict.fromkeys(known for text in newest_first for known in _written_ids(text)), owners
    )
    if not found:
        return None
    newest, *others = found
    if not request.user_texts:
        return _several(found) if others else newest
    # An agent that mixes histories up sends ids of one conversation with the text of another.
    text = _read(request.user_texts[-1])
    if others and (not text.covered_by(newest) or any(map(text.covered_by, others))):
        return _several(found)
    said = text.said_by(newest)
    if rivals := [each for each in active if each is not newest and text.said_by(each, newest=True) & ~said]:
        return _several([newest, *rivals])
    return newest


def _owners(ids: Collection[str], owners: Owners) -> list[GatewayConversation]:
    found: dict[str, GatewayConversation] = {}
    for known in ids if not owners.keys().isdisjoint(ids) else ():
        if owner := owners.get(known):
            found.setdefault(owner.who.key, owner)
    return list(found.values())


def _only_teller(
    texts: Sequence[_UserText], conversations: Sequence[GatewayConversation]
) -> GatewayConversation | None:
    """Return the conversation that has said all texts, as for most requests, if no other can be meant."""
    said = [text.text for text in texts]
    newest = "".join(said[-1:])
    able = [each for each in conversations if newest in each.told or newest.startswith(each.known)]
    return able[0] if said and len(able) == 1 and all(map(able[0].texts.__contains__, said)) else None


def _by_text(
    texts: Sequence[_UserText], conversations: Collection[GatewayConversation], *, wholly: bool = False
) -> GatewayConversation | str | None:
    """Return the conversation that accounts for all parts of the texts that any other accounts for."""
    joined = "\n".join([text.text for text in texts])
    outer = [text.text for text in (*texts[:1], *texts[-1:])]

    def may_account(conversation: GatewayConversation) -> bool:  # most conversations do not: look once
        return any(map(joined.__contains__, conversation.texts)) or (
            bool(conversation.arguments)
            and any(
                argument in joined or any(text in argument for text in outer)
                for argument in conversation.arguments
            )
        )

    covered = {
        each.who.key: (each, [text.covered_by(each) for text in texts])
        for each in conversations
        if may_account(each)
    }
    candidates = [each for each in covered.values() if any(each[1])]
    if not candidates:
        return None
    best, most = candidates[0]
    if len(candidates) > 1:
        best, most = max(candidates, key=lambda each: (_is_rival(each[0]), sum(map(int.bit_count, each[1]))))
    if wholly and not all(part == text.all for part, text in zip(most, texts, strict=True)):
        return None
    rivals = (each for each in conversations if each is not best and _is_rival(each))
    forwarding = [
        each for each in rivals if all(any(is_part(text.text, said) for said in each.texts) for text in texts)
    ]
    if forwarding:
        return _several([best, *forwarding])
    if len(covered) == 1:
        return best
    # Agents write texts of the model and short arguments into their own texts, so these rule others out only.
    whole = [part | text.written_by(best) for part, text in zip(most, texts, strict=True)]
    for each, parts in covered.values():
        written = [part | text.written_by(each) for part, text in zip(parts, texts, strict=True)]
        equal = any(written) and _within(most, written) and _is_rival(each) >= _is_rival(best)
        if each is not best and (equal or not _within(parts, whole)):
            return _several([one for one, _ in covered.values()])
    return best


def _within(parts: Sequence[int], whole: Sequence[int]) -> bool:
    return not any(a & ~b for a, b in zip(parts, whole, strict=True))


def is_part(part: str, text: str) -> bool:
    """Return True if a text consists of whole words of another."""
    return part in text and re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) is not None


def _is_rival(conversation: GatewayConversation) -> bool:
    return conversation.at_work or not conversation.over


def _read(text: str) -> _UserText:
    return _read_once(text) if len(text) <= _MOST_REMEMBERED_CHARS else _UserText(text)


class _UserText:
    """A text of the user in a request, which a framework may have wrapped in others."""

    def __init__(self, text: str) -> None:
        self._raw = text
        self.text = on_one_line(text)
        self.all = (1 << len(text)) - 1

    def covered_by(self, conversation: GatewayConversation) -> int:
        """Return the characters, as bits, that texts of the user and arguments of calls account for."""
        covered = self.said_by(conversation)
        if covered == self.all:
            return covered
        for argument in conversation.arguments if self.text else ():
            if len(self.text) >= _LEAST_CHARS and self.text in argument:
                return self.all
            if len(argument) >= _LEAST_CHARS or argument == self.text:
                covered |= self._covered(argument)
        return covered

    def written_by(self, conversation: GatewayConversation) -> int:
        """Return the characters, as bits, that the model wrote, also in calls."""
        covered = 0
        for text in (*conversation.model_texts, *conversation.arguments):
            covered |= self._covered(text)
        return covered

    def said_by(self, conversation: GatewayConversation, *, newest: bool = False) -> int:
        """Return the characters, as bits, that texts of the user account for, or the newest of them."""
        covered, texts = 0, conversation.texts[-1:] if newest else conversation.texts
        if self.text in texts:
            return self.all
        for said in texts:
            covered |= self._covered(said)
        return covered

    def _covered(self, said: str) -> int:
        if not said or said not in self.text:
            return 0
        if said == self.text:
            return self.all
        pattern = r"\s+".join(map(re.escape, said.split()))
        if len(said) < _LEAST_CHARS:  # alone in its line, or after a label or tag
            pattern = rf"(?:^|(?<=[:>]))[ \t]*{pattern}[ \t]*(?:$|(?=<))"
        else:
            pattern = rf"(?<!\w){pattern}(?!\w)"
        covered = 0
        for match in re.finditer(pattern, self._raw, re.MULTILINE):
            covered |= ((1 << len(match[0])) - 1) << match.start()
        return covered


_read_once = lru_cache(2_000)(_UserText)
