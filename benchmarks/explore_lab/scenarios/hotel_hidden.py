from agentest import call, scenario

scenario(
    "tells what guests say",
    turns=["What do guests say about you? I mean the reviews."],
    tools={
        "list_reviews": {
            "reviews": [{"stars": 5, "text": "Quiet rooms."}, {"stars": 3, "text": "The breakfast was late."}]
        },
        "cancel_booking": {"cancelled": True},
    },
    trajectory={"expected": ["list_reviews"]},
    expect={"says": ["Quiet", "breakfast"]},
)
scenario(
    "cancels a booking",
    turns=["Cancel booking HB-12, please.", "Yes."],
    tools={"cancel_booking": {"cancelled": True}, "list_reviews": {"reviews": []}},
    trajectory={"reads": ["list_*"], "expected_writes": [call("cancel_booking", id="HB-12")]},
)
