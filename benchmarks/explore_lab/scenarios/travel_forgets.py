from agentest import call, scenario

scenario(
    "keeps to a price",
    turns=[
        "Hello, I can pay at most 200 euros, and I want to fly from Oslo to Rome.",
        "On 2026-06-10.",
        "Book FL-1, please.",
        "Yes, go ahead.",
    ],
    tools={
        "find_flights": {"flights": [{"id": "FL-1", "price": 150}, {"id": "FL-9", "price": 350}]},
        "book_flight": {"booking": "BK-31"},
    },
    trajectory={"reads": ["find_*"], "expected_writes": [call("book_flight", flight="FL-1")]},
    never=["FL-9"],
    date="2026-05-12",
)
