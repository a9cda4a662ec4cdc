"""Plug-ins, one folder each: what the core does not need, handed in through `agentest.plugin`."""
