"""ASGI applications that run in this process, in the place of an agent behind an address."""
