"""The viewer: one page in two coats, a file that a CI job keeps and the page of `agentest ui`."""
