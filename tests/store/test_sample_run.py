"""A run in which everything occurs is one that the schema of results.json knows."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
import sample_run
import stored
from jsonschema import validate

from agentest.domain.results import RunResult

SCHEMA = json.loads(files("agentest").joinpath("schemas/results.schema.json").read_text("utf-8"))


@pytest.mark.parametrize("run", [sample_run.sample_run(), sample_run.compared_run()], ids=["one", "two"])
def test_everything_that_occurs_is_in_the_schema(run: RunResult) -> None:
    """Nothing is written that reading would refuse: trajectories of single turns have an alignment, too."""
    validate(stored.to_json(run), SCHEMA)
