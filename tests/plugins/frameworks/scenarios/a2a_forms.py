"""The forms that answers have in A2A."""

from agentest import scenario


def said(text: str, *contains: str) -> dict:
    return {"user_message": text, "expect": {"contains": list(contains)}}


QUESTION = said("ask lamp", "Order lamp?")
HELLO = said("hello", "You said: hello")

scenario("a message and no task", turns=[said("message hi", "You said: message hi"), HELLO])
scenario("two artifacts", turns=[said("two lamps", "First.", "Second: lamps"), HELLO])
scenario("an artifact in pieces", turns=[said("pieces of some longer text", "of some longer text")])
scenario("a question, and yes", turns=[QUESTION, said("yes", "Ordered."), HELLO])
scenario("a question, and no", turns=[QUESTION, said("no", "Not ordered."), HELLO])
