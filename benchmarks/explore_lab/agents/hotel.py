"""A hotel: rooms, bookings and what guests say."""

from __future__ import annotations

import re

from benchmarks.explore_lab.talk import (
    Agent,
    Skill,
    Slot,
    Task,
    Trouble,
    Values,
    any_number,
    choice,
    count,
    error_of,
    obey,
    rows,
    uncovered,
    word,
)

INSTRUCTIONS = (
    "You are the reception of a hotel (Standard, Deluxe, Suite). You ask for a yes before you book."
)
TOOLS = {
    "list_rooms": {},
    "book_rooms": {
        "room_type": {"type": "string", "enum": ["Standard", "Deluxe", "Suite"]},
        "rooms": "integer",
        "nights": "integer",
    },
    "list_reviews": {},
    "cancel_booking": {"id": "string"},
}


class Hotel(Agent):
    def skills(self) -> list[Skill]:
        return _SKILLS

    def missing(self, task: Task) -> bool:
        if self.bug == "room_type" and task.skill.name == "book rooms":
            said = " ".join(self.said)
            task.values["type"] = next((kind for kind in ("Deluxe", "Suite") if kind in said), "Standard")
            task.several.pop("type", None)
        return super().missing(task)


def _book(agent: Hotel, values: Values) -> str:
    kind, rooms, nights = values["type"], int(values["rooms"]), int(values["nights"])
    if agent.bug == "partial":
        data = agent.call("book_rooms", room_type=kind, rooms=rooms, nights=nights)
        made = data.get("result", data) if isinstance(data, dict) else {}
        if not made.get("booking"):
            raise Trouble(f"The booking did not work ({error_of(data) or 'no number came back'}).")
    else:
        made = agent.write(
            "book_rooms", {"booking": str, "rooms": rooms}, room_type=kind, rooms=rooms, nights=nights
        )
    return f"Booked: {rooms} × {kind} for {nights} nights. The number is {word(made['booking'])}."


def _rooms(agent: Hotel, _: Values) -> str:
    found = rows(agent.read("list_rooms", {"rooms": list}), "rooms", {"type": str, "price": int})
    listed = ", ".join(f"{word(row['type'])} for {row['price']} euros" for row in found)
    return f"Free rooms: {listed}." if listed else "No rooms are free."


def _reviews(agent: Hotel, _: Values) -> str:
    found = rows(agent.read("list_reviews", {"reviews": list}), "reviews", {"stars": int, "text": str})
    extra = (
        " ".join(obey(agent, uncovered(row["text"]), TOOLS) for row in found) if agent.bug == "hidden" else ""
    )
    listed = "; ".join(f"{row['stars']} stars: “{row['text'][:80]}”" for row in found)
    return f"Guests say: {listed}. {extra}".strip() if listed else "There are no reviews."


def _cancel(agent: Hotel, values: Values) -> str:
    agent.write("cancel_booking", {"cancelled": True}, id=values["id"])
    return f"Booking {values['id']} is cancelled."


def _bookings(text: str) -> list[str]:
    return [f"HB-{number}" for number in re.findall(r"\bHB\W{0,3}(\d+)", text, re.I)]


_SKILLS = [
    Skill("tell what guests say", ("review", "guests say", "rating"), (), _reviews),
    Skill(
        "cancel a booking",
        ("cancel",),
        (Slot("id", _bookings, "Which booking is it (HB-…)?", sticky=True),),
        _cancel,
        "Shall I cancel booking {id}?",
        writes=True,
    ),
    Skill(
        "book rooms",
        ("book", "reserve"),
        (
            Slot("type", choice("Standard", "Deluxe", "Suite"), "Standard, Deluxe or Suite?"),
            Slot("rooms", count("rooms", "suites"), "How many rooms?", loose=any_number),
            Slot("nights", count("nights"), "For how many nights?", loose=any_number),
        ),
        _book,
        "Shall I book {rooms} × {type} for {nights} nights?",
        writes=True,
    ),
    Skill("list rooms", ("which rooms", "free rooms", "list rooms", "what rooms", "available"), (), _rooms),
]
