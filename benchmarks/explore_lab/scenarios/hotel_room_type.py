from agentest import call, scenario


def book_rooms(room_type: str, rooms: int, nights: int) -> dict[str, object]:
    return {"booking": "HB-40", "rooms": rooms}


scenario(
    "books a room after a yes",
    turns=["I would like to book 1 Deluxe room for 2 nights.", "Yes, please."],
    tools={"book_rooms": book_rooms},
    trajectory={"expected": [call("book_rooms", room_type="Deluxe", rooms=1, nights=2)]},
    consent={"book_rooms": "yes|please do|confirm"},
)
scenario(
    "asks for the number of nights",
    turns=["Please reserve 2 Standard rooms.", "For 4 nights.", "Yes."],
    tools={"book_rooms": book_rooms},
    trajectory={"expected": [call("book_rooms", room_type="Standard", rooms=2, nights=4)]},
)
