"""`agentest doctor`: whether all is there that a run needs, and what to do where it is not."""
