"""A calendar: meetings with people."""

from __future__ import annotations

import re

from benchmarks.explore_lab.talk import (
    Agent,
    Skill,
    Slot,
    Task,
    Values,
    bare_name,
    clock,
    ids,
    names,
    rows,
    weekday,
    word,
)

INSTRUCTIONS = "You keep the calendar of your user."
TOOLS = {
    "list_events": {"day": "string"},
    "create_event": {
        "person": "string",
        "day": "string",
        "time": {"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
    },
    "delete_event": {"id": "string"},
}
_DAY = Slot("day", weekday, "On which day?")
_TIME = Slot("time", clock, "At what time?")


class Calendar(Agent):
    def skills(self) -> list[Skill]:
        return _SKILLS

    def tasks(self, text: str) -> list[Task]:
        return super().tasks(text)[:1] if self.bug == "drops_second" else super().tasks(text)

    def corrected(self, text: str) -> tuple[str, bool | None]:
        if self.bug == "correction":
            return re.sub(r"(?i)(sorry|no|wait)?[, ]*\bnot \S+ ?(but)? ?\S+", "", text), None
        return super().corrected(text)

    def missing(self, task: Task) -> bool:
        if self.bug == "split" and "time" not in task.values and {"person", "day"} <= set(task.values):
            task.values["time"] = "09:00"
            self.memory["early"] = task
        return super().missing(task)

    def turn(self, raw: str) -> str:
        early = self.memory.get("early")
        if self.bug == "split" and early and clock(raw) and not self.tasks(raw):
            early.values["time"] = clock(raw)[0]
            return self.perform(early)
        return super().turn(raw)


def _create(agent: Calendar, values: Values) -> str:
    agent.write("create_event", {"event": str}, **values)
    return f"The meeting with {values['person']} on {values['day']} at {values['time']} is in your calendar."


def _delete(agent: Calendar, values: Values) -> str:
    agent.write("delete_event", {"deleted": values["id"]}, id=values["id"])
    return f"Event {values['id']} is deleted."


def _list(agent: Calendar, values: Values) -> str:
    day = values["day"]
    found = rows(
        agent.read("list_events", {"day": str, "events": list}, {"day": day}, day=day),
        "events",
        {"id": str, "time": str},
    )
    listed = ", ".join(f"{word(row['id'])} at {word(row['time'])}" for row in found)
    return f"On {day} you have {listed}." if listed else f"There is nothing in your calendar on {day}."


_SKILLS = [
    Skill(
        "delete an event",
        ("delete", "remove", "cancel"),
        (Slot("id", ids("EV"), "Which event is it (EV-…)?", sticky=True),),
        _delete,
        writes=True,
    ),
    Skill(
        "create a meeting",
        ("create", "schedule", "arrange", "set up", "add meeting", "need meeting"),
        (Slot("person", names("with"), "With whom?", loose=bare_name), _DAY, _TIME),
        _create,
        writes=True,
    ),
    Skill(
        "tell what is in the calendar",
        ("what calendar", "show calendar", "agenda", "events", "what is on"),
        (_DAY,),
        _list,
    ),
]
