"""Client for HTTP agents with a custom API, described by request templates and response paths."""
