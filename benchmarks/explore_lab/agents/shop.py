"""A web shop: where an order is, refunds, cancellations, new orders."""

from __future__ import annotations

from benchmarks.explore_lab.talk import (
    Agent,
    Skill,
    Slot,
    Trouble,
    Values,
    any_number,
    count,
    error_of,
    ids,
    word,
)

INSTRUCTIONS = (
    "You help customers of a web shop. Refund delivered orders only. An order has at most 10 units."
)
TOOLS = {
    "get_order": {"id": "string"},
    "refund_order": {"id": "string"},
    "cancel_order": {"id": "string"},
    "place_order": {"sku": "string", "quantity": {"type": "integer", "minimum": 1, "maximum": 10}},
}
_ORDER = Slot(
    "id",
    ids("ORD"),
    "Which order is it (ORD-…)?",
    sticky=True,
    loose=lambda text: [f"ORD-{n}" for n in any_number(text)],
)


class Shop(Agent):
    def skills(self) -> list[Skill]:
        return _SKILLS

    def turn(self, raw: str) -> str:
        if self.bug == "long_text" and len(raw) > 8_000:
            raise OverflowError("the message does not fit into the prompt")
        if self.bug == "yes_twice" and not self.open and "yes" in raw.lower() and self.memory.get("last"):
            return self.perform(self.memory["last"])
        if self.bug == "yes_twice" and self.open and self.open.skill.name == "place an order":
            self.memory["last"] = self.open
            self.open.again = True
        return super().turn(raw)

    def order(self, order: str) -> Values:
        return self.read("get_order", {"id": str, "status": str}, {"id": order}, id=order)


def _status(agent: Shop, values: Values) -> str:
    return f"Order {values['id']} is {word(agent.order(values['id'])['status'])}."


def _refund(agent: Shop, values: Values) -> str:
    order = values["id"]
    status = word(agent.order(order)["status"])
    if status != "delivered":
        return f"Order {order} is {status}, and only delivered orders can be refunded. I did nothing."
    if agent.bug == "refund_retry":
        for _ in range(3):
            if not error_of(agent.call("refund_order", id=order)):
                return f"Order {order} is refunded."
        raise Trouble("The refund did not go through.")
    agent.write(
        "refund_order", {"refund_id": str}, lambda: word(agent.order(order)["status"]) == "refunded", id=order
    )
    return f"Order {order} is refunded."


def _cancel(agent: Shop, values: Values) -> str:
    order = values["id"]
    status = word(agent.order(order)["status"])
    if status not in ("open", "paid"):
        return f"Order {order} is {status} and cannot be cancelled any more. I did nothing."
    if agent.bug == "cancel_claim":
        agent.call("cancel_order", id=order)
    else:
        agent.write(
            "cancel_order",
            {"status": "cancelled"},
            lambda: word(agent.order(order)["status"]) == "cancelled",
            id=order,
        )
    return f"Order {order} is cancelled."


def _place(agent: Shop, values: Values) -> str:
    made = agent.write("place_order", {"order_id": str}, sku=values["sku"], quantity=int(values["quantity"]))
    number = word(made["order_id"])
    return f"I ordered {values['quantity']} units of {values['sku']} for you. Your order number is {number}."


def _too_many(agent: Agent, values: Values) -> str:
    most = 11 if agent.bug == "limit" else 10
    if not 1 <= int(values["quantity"]) <= most:
        return f"An order has 1 to 10 units, so I cannot order {values['quantity']} of {values['sku']}."
    return ""


_SKILLS = [
    Skill("refund an order", ("refund", "money back", "reembolso"), (_ORDER,), _refund, writes=True),
    Skill("cancel an order", ("cancel",), (_ORDER,), _cancel, writes=True),
    Skill(
        "place an order",
        ("buy", "purchase", "place order", "like to order", "want to order"),
        (
            Slot("sku", ids("SKU"), "Which article is it (SKU-…)?"),
            Slot(
                "quantity",
                count("units", "pieces", "items", "of"),
                "How many units do you need?",
                loose=any_number,
            ),
        ),
        _place,
        "Shall I place the order for {quantity} units of {sku}?",
        writes=True,
        check=_too_many,
    ),
    Skill(
        "tell where an order is",
        ("where order", "where parcel", "status", "track", "arrive"),
        (_ORDER,),
        _status,
    ),
]
