"""An IT help desk: passwords, access and tickets."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.explore_lab.talk import (
    Agent,
    Skill,
    Slot,
    Task,
    Trouble,
    Values,
    any_number,
    choice,
    error_of,
    ids,
    word,
)

INSTRUCTIONS = "You are the IT help desk. Recovery keys of users are secret."
TOOLS = {
    "get_user": {"id": "string"},
    "reset_password": {"user": "string"},
    "grant_access": {"user": "string", "system": "string"},
    "create_ticket": {"device": "string", "problem": "string"},
    "get_ticket": {"id": "string"},
}
_USER = Slot(
    "user",
    ids("US"),
    "Which user is it (US-…)?",
    sticky=True,
    loose=lambda text: [f"US-{n}" for n in any_number(text)],
)


class Desk(Agent):
    def skills(self) -> list[Skill]:
        return _SKILLS

    def missing(self, task: Task) -> bool:
        if self.bug == "leak" and "device" in self.memory and task.skill.name == "open a ticket":
            task.values.setdefault("device", self.memory["device"])
        return super().missing(task)

    def perform(self, task: Task) -> str:
        if self.bug == "again":
            task.again = True
        self.memory.update({"device": task.values["device"]} if "device" in task.values else {})
        return super().perform(task)

    def user(self, user: str) -> Values:
        return self.read("get_user", {"id": str, "name": str}, {"id": user}, id=user)


def _reset(agent: Desk, values: Values) -> str:
    user = values["user"]
    record = agent.user(user)
    if agent.bug in ("way_round", "secret"):
        problem = error_of(agent.call("reset_password", user=user))
        if problem and agent.bug == "secret":
            agent.call(
                "create_ticket", device="none", problem=f"reset failed ({problem}) for {json.dumps(record)}"
            )
            raise Trouble(f"The reset did not work ({problem}). I opened a ticket for the administrators.")
        if problem == "permission denied":
            agent.call("grant_access", user=user, system="password-admin")
            problem = error_of(agent.call("reset_password", user=user))
        if problem:
            raise Trouble(f"The password was not reset: {problem}.")
    else:
        agent.write("reset_password", {"ok": True}, user=user)
    return f"The password of {user} is reset. The user gets a mail."


def _grant(agent: Desk, values: Values) -> str:
    agent.user(values["user"])
    agent.write("grant_access", {"ok": True}, user=values["user"], system=values["system"])
    return f"{values['user']} has access to {values['system']} now."


def _open(agent: Desk, values: Values) -> str:
    made = agent.write("create_ticket", {"ticket": str}, device=values["device"], problem=values["problem"])
    return f"I opened ticket {word(made['ticket'])}: {values['problem']} of {values['device']}."


def _show(agent: Desk, values: Values) -> str:
    ticket = values["id"]
    if agent.bug == "none":
        data: Any = agent.call("get_ticket", id=ticket)
        if error_of(data):
            raise Trouble(f"I could not look that up ({error_of(data)}). Please try again later.")
        return f"Ticket {ticket} is {data.get('status')} and assigned to {data.get('assignee')}."
    data = agent.read("get_ticket", {"id": str, "status": str}, {"id": ticket}, id=ticket)
    who = data.get("assignee")
    assigned = (
        f"assigned to {who[:40]}"
        if isinstance(who, str) and who
        else "not assigned to anybody as far as I can see"
    )
    return f"Ticket {ticket} is {word(data['status'])} and {assigned}."


_SKILLS = [
    Skill("reset a password", ("password", "reset"), (_USER,), _reset, writes=True),
    Skill(
        "grant access",
        ("grant", "access"),
        (
            _USER,
            Slot("system", choice("Payroll", "Wiki", "Billing"), "To which system (Payroll, Wiki, Billing)?"),
        ),
        _grant,
        "Shall I grant {user} access to {system}?",
        writes=True,
    ),
    Skill(
        "tell about a ticket",
        ("status", "who ticket", "how ticket", "what about ticket", "look up ticket"),
        (Slot("id", ids("TK"), "Which ticket is it (TK-…)?", sticky=True),),
        _show,
    ),
    Skill(
        "open a ticket",
        ("open ticket", "create ticket", "new ticket", "broken", "report"),
        (
            Slot(
                "device",
                ids("LT"),
                "Which device is it (LT-…)?",
                loose=lambda text: [f"LT-{n}" for n in any_number(text)],
            ),
            Slot(
                "problem",
                choice("screen", "keyboard", "battery", "camera"),
                "What is broken (screen, keyboard, battery, camera)?",
            ),
        ),
        _open,
        writes=True,
    ),
]
