from typing import Any

from agentest import MockContext, ToolError, call, scenario

BOOKINGS = {"BK-7": "confirmed", "BK-8": "confirmed"}


def get_booking(args: dict[str, Any], ctx: MockContext) -> dict[str, Any]:
    if args["id"] not in ctx.state:
        raise ToolError("not found")
    return {"id": args["id"], "status": ctx.state[args["id"]]}


def cancel_booking(args: dict[str, Any], ctx: MockContext) -> dict[str, Any]:
    ctx.state[args["id"]] = "cancelled"
    return {"id": args["id"], "status": "cancelled"}


scenario(
    "cancels a booking",
    turns=["Please cancel my booking BK-7."],
    tools={
        "list_bookings": lambda args, ctx: {
            "bookings": [{"id": i, "status": s} for i, s in ctx.state.items()]
        },
        "get_booking": get_booking,
        "cancel_booking": cancel_booking,
    },
    state=BOOKINGS,
    trajectory={"reads": ["get_*", "list_*"], "expected_writes": [call("cancel_booking", id="BK-7")]},
    final_state={"BK-7": "cancelled", "BK-8": "confirmed"},
)
