"""Questions to an agent that only answers."""

from agentest import scenario

scenario("asks", turns=[{"user_message": "who are you?", "expect": {"contains": "You asked: who are you?"}}])
scenario("fails", turns=["hello", "fail"])
