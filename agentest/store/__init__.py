"""The files of a run: results.json, the journal, stored runs and spans, written and read."""
