"""HTTP for agents and models: connections, address checks, retries, server-sent events."""
