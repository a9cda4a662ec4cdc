"""A travel agency: flights within a price limit, and bookings."""

from __future__ import annotations

import re
from datetime import date, timedelta
from itertools import pairwise

from benchmarks.explore_lab.talk import (
    Agent,
    Find,
    Skill,
    Slot,
    Task,
    Values,
    any_number,
    choice,
    count,
    ids,
    like,
    rows,
    word,
)

INSTRUCTIONS = "You find and book flights, and cancel bookings. Keep to what the traveller says about prices."
TOOLS = {
    "find_flights": {
        "origin": "string",
        "destination": "string",
        "date": {"type": "string", "format": "date"},
    },
    "book_flight": {"flight": "string"},
    "list_bookings": {},
    "get_booking": {"id": "string"},
    "cancel_booking": {"id": "string"},
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_city = choice("Oslo", "Paris", "Rome", "Berlin", "Madrid", "Lisbon")


def _cities(*markers: str) -> Find:
    def find(text: str) -> list[str]:
        said = re.findall(r"\w+", text.lower().replace("destination is", "to"))
        return [
            c
            for one, two in pairwise(said)
            if any(like(one, marker) for marker in markers)
            for c in _city(two)
        ]

    return find


def _dates(text: str) -> list[str]:
    """Dates as they are said; `_day` makes days of them."""
    month = rf"(?:{'|'.join(_MONTHS)})[a-z]*"
    named = rf"(?:\d{{1,2}}(?:st|nd|rd|th)? {month}|{month} \d{{1,2}})\b"
    said = re.findall(
        rf"\d{{4}}-\d\d-\d\d|\b(?:for|fly|leave|travel) today\b|^\W*today\W*$|"
        rf"\b[a-z]*tom+or+ow\b|\bin \w+ days?\b|{named}",
        text,
        re.I,
    )
    return [found.lower() for found in said]


def _day(agent: Agent, said: str) -> str:
    today = date.fromisoformat((re.findall(r"\d{4}-\d\d-\d\d", agent.today) or ["2026-05-12"])[0])
    if re.match(r"\d{4}-", said):
        return said
    if month := re.search("|".join(_MONTHS), said):
        found = date(today.year, _MONTHS.index(month[0]) + 1, int(re.search(r"\d+", said)[0]))
        return (found if found >= today else found.replace(year=today.year + 1)).isoformat()
    days = 0 if "today" in said else 1 if said.startswith("tom") else int((any_number(said) or ["0"])[0])
    if agent.bug == "month_end":
        return f"{today:%Y-%m}-{today.day + days:02}"
    return (today + timedelta(days=days)).isoformat()


class Travel(Agent):
    def skills(self) -> list[Skill]:
        return _SKILLS

    def tasks(self, text: str) -> list[Task]:
        return sorted(super().tasks(text), key=lambda task: task.skill.name != "keep to a price limit")

    def corrected(self, text: str) -> tuple[str, bool | None]:
        text, amended = super().corrected(text)
        if self.bug == "swapped" and len(cities := _city(text)) > 1:
            text = re.sub(r"\b(from|to|destination is)\s+(?=\w)", "", text, flags=re.I)
            text = f"{text} from {cities[0]} to {cities[1]}"
        if self.bug == "id_spacing":
            text = re.sub(r"\b(?!BK-)(?i:bk\W*)\d+", "", text)
        return text, amended

    def missing(self, task: Task) -> bool:
        if self.bug == "id_spacing" and task.skill.name.endswith("booking") and "id" not in task.values:
            latest = self.read("list_bookings", {"bookings": list})["bookings"][-1]
            task.values["id"] = word(latest["id"])
        return super().missing(task)

    def limit(self) -> float:
        said, amount = self.memory.get("limit", (0, "inf"))
        if self.bug == "forgets" and len(self.said) - said > 4:
            return float("inf")
        return float(amount)


def _note(agent: Travel, values: Values) -> str:
    agent.memory["limit"] = (len(agent.said), values["limit"])
    return f"I will show and book only flights for at most {values['limit']} euros."


def _find(agent: Travel, values: Values) -> str:
    asked = {
        "origin": values["origin"],
        "destination": values["destination"],
        "date": _day(agent, values["date"]),
    }
    found = rows(agent.read("find_flights", {"flights": list}, **asked), "flights", {"id": str, "price": int})
    fitting = [
        f"{word(row['id'])} for {row['price']} euros" for row in found if row["price"] <= agent.limit()
    ]
    agent.memory["prices"] = {word(row["id"]): row["price"] for row in found}
    way = f"from {asked['origin']} to {asked['destination']} on {asked['date']}"
    return f"Flights {way}: {', '.join(fitting)}." if fitting else f"I found no fitting flight {way}."


def _book(agent: Travel, values: Values) -> str:
    made = agent.write("book_flight", {"booking": str}, flight=values["flight"])
    return f"Flight {values['flight']} is booked. The number is {word(made['booking'])}."


def _too_dear(agent: Travel, values: Values) -> str:
    prices = agent.memory.get("prices", {})
    if values["flight"] not in prices:
        return f"I have not found flight {values['flight']} yet. Tell me from where to where and when."
    if prices[values["flight"]] > agent.limit():
        price = prices[values["flight"]]
        return f"Flight {values['flight']} costs {price} euros, more than your limit. I did not book it."
    return ""


def _cancel(agent: Travel, values: Values) -> str:
    booking = values["id"]
    status = word(
        agent.read("get_booking", {"id": str, "status": str}, {"id": booking}, id=booking)["status"]
    )
    if status != "confirmed":
        return f"Booking {booking} is {status}. I did nothing."
    agent.write("cancel_booking", {"status": "cancelled"}, id=booking)
    return f"Booking {booking} is cancelled."


def _show(agent: Travel, _: Values) -> str:
    found = rows(agent.read("list_bookings", {"bookings": list}), "bookings", {"id": str, "status": str})
    listed = ", ".join(f"{word(row['id'])} ({word(row['status'])})" for row in found)
    return f"Your bookings: {listed}." if listed else "You have no bookings."


_SKILLS = [
    Skill(
        "cancel a booking",
        ("cancel",),
        (Slot("id", ids("BK"), "Which booking is it (BK-…)?", sticky=True),),
        _cancel,
        writes=True,
    ),
    Skill("list bookings", ("my bookings", "all bookings", "which bookings"), (), _show),
    Skill(
        "keep to a price limit",
        ("at most", "no more than", "maximum", "budget"),
        (Slot("limit", count("euros", "eur", "€"), "How many euros at most?", loose=any_number),),
        _note,
        writes=True,
    ),
    Skill(
        "book a flight",
        ("book", "reserve"),
        (Slot("flight", ids("FL"), "Which flight is it (FL-…)?"),),
        _book,
        "Shall I book flight {flight}?",
        writes=True,
        check=_too_dear,
    ),
    Skill(
        "find flights",
        ("flight", "fly", "travel"),
        (
            Slot("origin", _cities("from", "leaving", "departing"), "From where do you fly?", loose=_city),
            Slot("destination", _cities("to", "towards"), "Where do you fly to?", loose=_city),
            Slot("date", _dates, "On which day?"),
        ),
        _find,
    ),
]
