"""A clinic: free slots and appointments for patients."""

from __future__ import annotations

import re

from benchmarks.explore_lab.talk import (
    Agent,
    Skill,
    Slot,
    Trouble,
    Values,
    bare_name,
    clock,
    ids,
    names,
    rows,
    weekday,
    word,
)

INSTRUCTIONS = (
    "You are the front desk of a clinic. You book appointments for patients, found by name or PT-number."
)
TOOLS = {
    "find_patients": {"name": "string"},
    "get_patient": {"id": "string"},
    "list_slots": {"day": "string"},
    "book_appointment": {"patient_id": "string", "day": "string", "time": "string"},
}
_name = names("for", "is", least=2)


def _patients(text: str) -> list[str]:
    return ids("PT")(text) or _name(text)


_PATIENT = Slot("patient", _patients, "Who is the patient (name or PT-…)?", sticky=True, loose=bare_name)
_DAY = Slot("day", weekday, "On which day?")


class Clinic(Agent):
    def skills(self) -> list[Skill]:
        return _SKILLS


def _patient_id(agent: Clinic, who: str) -> str:
    if who.startswith("PT-"):
        echo = {} if agent.bug == "wrong_patient" else {"id": who}
        return word(agent.read("get_patient", {"id": str, "name": str}, echo, id=who)["id"])
    found = rows(
        agent.read("find_patients", {"patients": list}, name=who), "patients", {"id": str, "name": str}
    )
    if not found:
        raise Trouble(f"I find no patient with the name {who}. I booked nothing.")
    if agent.bug != "first_patient":
        if len(found) > 1:
            listed = ", ".join(f"{word(row['id'])} ({row['name'][:40]})" for row in found)
            raise Trouble(
                f"I find several patients: {listed}. Please ask again with the number of the right one."
            )
        if not found[0]["name"].lower().startswith(who.lower()):
            raise Trouble(f"The system does not show {who}, but somebody else, so I booked nothing.")
    return word(found[0]["id"])


def _free(agent: Clinic, day: str) -> list[str]:
    data = agent.read("list_slots", {"day": str, "slots": list}, {"day": day}, day=day)
    if not all(isinstance(slot, str) for slot in data["slots"]):
        raise Trouble("The list of free times is unreadable. Please try again later.")
    free = [word(slot) for slot in dict.fromkeys(data["slots"]) if re.fullmatch(r"\d\d:\d\d", word(slot))]
    return free or (["09:00", "11:30"] if agent.bug == "invented_slot" else [])


def _slots(agent: Clinic, values: Values) -> str:
    free = _free(agent, values["day"])
    return f"Free on {values['day']}: {', '.join(free)}." if free else f"Nothing is free on {values['day']}."


def _book(agent: Clinic, values: Values) -> str:
    patient, day, time = _patient_id(agent, values["patient"]), values["day"], values["time"]
    free = _free(agent, day)
    if time not in free:
        return (
            f"{time} is not free on {day}. "
            + (f"Free are {', '.join(free)}." if free else "Nothing is.")
            + " I booked nothing."
        )
    made = agent.write("book_appointment", {"appointment": str}, patient_id=patient, day=day, time=time)
    number = word(made["appointment"])
    return f"{values['patient']} has an appointment on {day} at {time}. The number is {number}."


_SKILLS = [
    Skill(
        "book an appointment",
        ("book", "appointment", "schedule", "reserve"),
        (_PATIENT, _DAY, Slot("time", clock, "At what time?")),
        _book,
        writes=True,
    ),
    Skill("list free times", ("free", "available", "slots", "openings"), (_DAY,), _slots),
]
