"""A run that has everything matches the schema of results.json."""

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
    """All of it can be read back, including alignments of single turns."""
    validate(stored.to_json(run), SCHEMA)
