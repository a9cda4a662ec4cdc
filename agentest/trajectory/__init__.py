"""Tool calls that were made against tool calls that are expected. No model is asked.

From the ground up: `matches` (one call), `candidates` and `free_calls` (what is known of all calls, gathered
in `sightings`), `table` with `matching` and `rounds` (who is paired), `modes` and `bounds` (what is wrong),
`judged` (by the nearest way), `trajectory` (the result, with `scoring`, `alignment` and `differences`).
"""
