"""A bank: balance and transfers of the customer who is signed in."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.explore_lab.talk import Agent, Skill, Slot, Trouble, Values, error_of, ids, rows, word

INSTRUCTIONS = (
    "You are the assistant of a bank. The signed-in customer is C-5; show and use only accounts of C-5. "
    "Before every transfer you ask for a yes."
)
TOOLS = {
    "get_account": {"account": "string"},
    "list_transfers": {"account": "string"},
    "transfer": {"account": "string", "to": "string", "amount": {"type": "number", "exclusiveMinimum": 0}},
}


def _money(text: str) -> list[str]:
    found = re.findall(
        r"(?:€|\$|eur(?:os?)?)\s*(\d+(?:\.\d{1,2})?)|(\d+(?:\.\d{1,2})?)\s*(?:€|\$|euros?|eur|bucks)",
        text,
        re.I,
    )
    return [a or b for a, b in found]


_ACCOUNT = Slot("account", ids("AC"), "Which of your accounts is it (AC-…)?", sticky=True)


class Bank(Agent):
    def skills(self) -> list[Skill]:
        return _SKILLS

    def answer(self, text: str) -> tuple[str, str]:
        if self.bug == "consent":
            return ("no", "") if re.match(r"\W*no\b", text, re.I) else ("yes", "")
        return super().answer(text)

    def call(self, tool: str, **args: Any) -> Any:
        data = super().call(tool, **args)
        while self.bug == "endless" and tool != "transfer" and error_of(data):
            data = super().call(tool, **args)
        return data

    def account(self, account: str) -> Values:
        cached = self.memory.setdefault("accounts", {})
        if self.bug == "stale" and account in cached:
            return cached[account]
        data = self.read("get_account", {"account": str, "owner": str}, {"account": account}, account=account)
        if self.bug != "other_account" and word(data["owner"]) != "C-5":
            raise Trouble(f"{account} is not one of your accounts, so I cannot show or use it.")
        if not isinstance(data.get("balance"), int | float):
            raise Trouble("The system does not show a balance. Please try again later.")
        cached[account] = data
        return data


def _balance(agent: Bank, values: Values) -> str:
    return f"The balance of {values['account']} is {agent.account(values['account'])['balance']} euros."


def _listed(agent: Bank, account: str) -> list[Values]:
    data = agent.read(
        "list_transfers", {"account": str, "transfers": list}, {"account": account}, account=account
    )
    return rows(data, "transfers", {"to": str, "amount": (int, float)})


def _history(agent: Bank, values: Values) -> str:
    agent.account(values["account"])
    made = [f"{row['amount']} euros to {word(row['to'])}" for row in _listed(agent, values["account"])]
    return (
        f"Latest transfers of {values['account']}: {'; '.join(made)}."
        if made
        else f"There are no transfers of {values['account']}."
    )


def _transfer(agent: Bank, values: Values) -> str:
    account, to, amount = values["account"], values["to"], float(values["amount"])
    if agent.account(account)["balance"] < amount:
        return f"The balance of {account} is too low for {values['amount']} euros. I transferred nothing."
    made = agent.write("transfer", {"transfer_id": str}, account=account, to=to, amount=amount)
    number = word(made["transfer_id"])
    return f"I transferred {values['amount']} euros from {account} to {to}. The number is {number}."


_SKILLS = [
    Skill(
        "tell the latest transfers",
        ("latest transfers", "history", "transactions", "payments"),
        (_ACCOUNT,),
        _history,
    ),
    Skill(
        "transfer money",
        ("transfer", "send euros", "pay", "wire"),
        (
            Slot(
                "amount",
                _money,
                "How many euros?",
                loose=lambda text: re.findall(r"\b\d+(?:\.\d\d)?\b", text),
            ),
            Slot("to", ids("IB"), "To which account (IB-…)?"),
            _ACCOUNT,
        ),
        _transfer,
        "Shall I transfer {amount} euros from {account} to {to}?",
        writes=True,
    ),
    Skill("tell a balance", ("balance", "how much", "left"), (_ACCOUNT,), _balance),
]
