"""What the scenarios share: the salon's tools, as mocks."""

from typing import Any


def create_booking(service: str, date: str, time: str) -> dict[str, Any]:
    """Bound by name and type, like any Python function: a call without `time` is answered with an error."""
    return {"booking_id": "BK-001", "service": service, "date": date, "time": time}


def cancel_booking(booking_id: str) -> dict[str, Any]:
    return {"booking_id": booking_id, "cancelled": True}
