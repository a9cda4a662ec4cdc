"""Scenarios in pytest. `plugin` is what pytest loads; the other modules wait until it is asked for them."""
