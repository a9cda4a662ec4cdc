"""`agentest export`: finished conversations as evaluation sets, or as scripted scenarios."""
