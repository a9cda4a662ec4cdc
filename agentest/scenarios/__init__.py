"""Scenarios: what they say, what they expect, and how their files are found.

`definition.scenario` takes what a file says, `making` makes a `model.Scenario` of it. What is expected are
frozen values: `calls`, `trajectory`, `expectations`. There is one way in for each: `steps` reads calls,
alternatives and orders, `trajectories` reads trajectories and asks `contradictions`, `expectations` and
`state` read their own; `forms` reads words that were written as data, `parsing` plain options. `words` are
what files write for calls. The one way out is `writing`: data that is read back the same.
"""
