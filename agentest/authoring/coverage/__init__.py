"""`agentest coverage`: which paths of which tasks have scenarios, and which tools were called and failed."""
