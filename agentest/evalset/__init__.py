"""ADK's evaluation sets: its formats in, its results out, everything between through our own runner."""
