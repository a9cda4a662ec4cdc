"""Guess from the name of a tool whether it reads or writes."""

from __future__ import annotations

import re


def _verbs(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READING = _verbs(
    "get list search find lookup look fetch read check show query view describe count retrieve browse is has "
    "can calculate compute estimate quote validate verify preview inspect compare convert translate "
    "summarize track load select ask resolve locate detect suggest recommend whois explain peek poll"
)
_WRITING = _verbs(
    "create make update set add remove delete drop clear reset put post patch insert upsert save store write "
    "edit modify change rename replace upload submit send notify reply forward share publish pay charge "
    "refund transfer withdraw deposit buy purchase sell order book reserve cancel confirm register enroll "
    "subscribe unsubscribe schedule reschedule issue grant revoke block unblock activate deactivate enable "
    "disable execute deploy restart escalate open close start stop move turn lock unlock apply approve "
    "reject assign merge checkout redeem top record log place dispatch ship return archive restore sign "
    "invite ban mute pause resume trigger redo undo void credit debit bill wire mail email sms call "
    "hire fire kill launch print release renew extend upgrade downgrade install uninstall mark tag "
    "copy sync import export"
)
_NOUNS_OF_READS = _verbs(
    "status info information details history list balance availability price prices rate rates options "
    "summary overview report results items catalog catalogue schedule weather forecast"
)
_AMBIGUOUS = _verbs(
    "order book return ship place call open start record log mail email bill credit sign top print tag "
    "report copy lock release turn block import export"
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def verb_effect(name: str) -> str:
    """Guess from a tool's name what it does: read, write, or "" if the name tells nothing."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return ""
    first, last = words[0], words[-1]
    if first == "check" and words[1:2] in (["in"], ["out"]):
        return "write"
    if len(words) > 1 and last in _NOUNS_OF_READS and (first in _AMBIGUOUS or first not in _WRITING):
        return "read"
    for word in words:
        if word in _READING:
            return "read"
        if word in _WRITING:
            return "write"
    return "read" if last in _NOUNS_OF_READS else ""
