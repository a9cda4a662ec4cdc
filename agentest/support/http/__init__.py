"""HTTP as agents and models need it: connections, guarded addresses, retries, server-sent events."""
