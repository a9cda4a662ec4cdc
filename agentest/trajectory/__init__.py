"""Match the tool calls that an agent made against the expected calls, without a model.

From the ground up: `candidates` (which calls may match an expected call), `known_calls` (everything known
about the calls), `matching` and `table` (pairs of expected and actual calls), `limits` and `assessment`
(violations), `trajectory` (the result, with `alignment` and `differences`).
"""
