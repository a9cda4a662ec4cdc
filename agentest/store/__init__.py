"""What a run leaves in files: results.json and the journal, written and read."""
