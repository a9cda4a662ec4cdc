from agentest import call, scenario

scenario(
    "lists and books rooms",
    turns=["Which rooms are available?", "Please book 3 Standard rooms for 2 nights.", "Yes, do it."],
    tools={
        "list_rooms": {"rooms": [{"type": "Standard", "price": 80}, {"type": "Deluxe", "price": 140}]},
        "book_rooms": {"booking": "HB-52", "rooms": 3},
    },
    trajectory={
        "reads": ["list_*"],
        "expected_writes": [call("book_rooms", room_type="Standard", rooms=3, nights=2)],
    },
    expect={"says": ["140 euros", "HB-52"]},
)
