"""Scenarios: their values, their files and what they expect.

`definition.scenario` reads the options of a scenario file and returns a `model.Scenario`. Expectations are
frozen values in `trajectory` and `expectations`. Each has one parser: `trajectory_parser` for calls,
orders and trajectories, where the functions for scenario files are too, `expectations` for replies, `options`
for states and checks, and `parser` for plain options and words written as data. `contradictions` rejects
expectations that no conversation can meet. `discovery` finds and imports scenario files. `rows` fills options
from rows of data, and `data_files` loads scenarios from YAML. `serialization` writes conversations and
expectations as YAML, and `source_code` as Python.
"""
