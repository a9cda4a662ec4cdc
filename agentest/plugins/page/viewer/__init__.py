"""The viewer: one page in several variants, for the report file of a CI job and for `agentest ui`."""
