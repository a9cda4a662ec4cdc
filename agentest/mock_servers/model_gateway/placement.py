"""Decide which conversation a request to the model belongs to, without a guess."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agentest.mock_servers.model_gateway.conversation import GatewayConversation
from agentest.mock_servers.model_gateway.wire_form import WireRequest, normalized
from agentest.support.lazy_dataclasses import dataclass

_LEAST_CHARS = 12
"""Texts in arguments that are shorter belong to no certain call."""


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A request that belongs to no certain conversation."""

    why: str
    tool: str | None
    """A tool that it offers and that must not run, so that the request is refused; None if there is none."""


def place(
    request: WireRequest,
    active: Collection[GatewayConversation],
    ended: Collection[GatewayConversation] = (),
    lane: int | None = None,
) -> GatewayConversation | Unplaced:
    """Return the conversation of a request whose address names none.

    The first that decides: an id that was passed on, the user's texts, the arguments of a call under way, and
    that there is only one conversation.

    Args:
        ended: the last conversations that ended. Their agents may still be at work.
        lane: the copy of the agent's server that sent the request, which decides among those under way.
    """
    mocked = next((name for name in request.tools for each in active if each.mock_name(name)), None)
    if lane is not None:
        active = [each for each in active if each.lane == lane]
        # Everything else that a copy sends is of its only conversation, so a short text is no evidence.
        certain = [
            each for each in ended if each.lane == lane and len("".join(each.texts[-1:])) >= _LEAST_CHARS
        ]
    else:
        certain = [*ended]
    for decide, candidates in (
        (_by_id, [*active, *ended]),
        (_by_text, active),
        (_by_arguments, active),
        (_by_text, certain),
    ):
        owner = decide(request, candidates)
        if owner is None:
            continue
        if owner in active:
            return owner
        tool = mocked or next(iter(request.tools), None)
        return Unplaced(f"it is of {owner.who}, which has ended", tool)
    if len(active) == 1:
        return next(iter(active))
    number = f"{len(active)} conversations are" if active else "no conversation is"
    where = "" if lane is None else f" with copy {lane} of the agent"
    return Unplaced(f"nothing in it tells its conversation, and {number} under way{where}", mocked)


def _by_id(request: WireRequest, active: Collection[GatewayConversation]) -> GatewayConversation | None:
    for known in request.ids:
        for each in active:
            if known in each.ids:
                return each
    for text in reversed(request.history_texts):
        named = [each for each in active if any(known in text for known in each.ids)]
        if len(named) == 1:
            return named[0]
    return None


def _by_text(request: WireRequest, active: Collection[GatewayConversation]) -> GatewayConversation | None:
    texts = [normalized(text) for text in request.user_texts]

    def found(each: GatewayConversation) -> tuple[int, bool]:
        # By length, because a short text of one conversation may stand inside a long one of another.
        return sum(len(said) for said in each.texts if any(said in text for text in texts)), each.waiting > 0

    candidates = [
        each
        for each in active
        if each.texts and any(each.texts[-1] and each.texts[-1] in text for text in texts)
    ]
    return _only_best(candidates, [found(each) for each in candidates])


def _by_arguments(
    request: WireRequest, active: Collection[GatewayConversation]
) -> GatewayConversation | None:
    texts = [text for each in request.user_texts if len(text := normalized(each)) >= _LEAST_CHARS]

    def matches(argument: str) -> bool:
        return len(argument) >= _LEAST_CHARS and any(argument in text or text in argument for text in texts)

    candidates = [each for each in active if any(map(matches, each.arguments))]
    return candidates[0] if len(candidates) == 1 else None


def _only_best(
    candidates: Sequence[GatewayConversation], scores: Sequence[tuple[int, bool]]
) -> GatewayConversation | None:
    """Return the candidate with the best score; None if several have it."""
    if not candidates:
        return None
    best = max(scores)
    return candidates[scores.index(best)] if scores.count(best) == 1 else None
