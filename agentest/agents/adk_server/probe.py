"""Whether a server is google-adk's own: it lists its apps."""

from __future__ import annotations

from urllib.parse import urljoin

from agentest.agents.probing import Finding, Look

_APPS = "/list-apps"


async def probe(look: Look) -> Finding | None:
    """The root of google-adk's server, with its first app."""
    seen = await look.get(_APPS)
    apps = seen.json if seen is not None and seen.status == 200 else None
    if not isinstance(apps, list) or not apps or not all(isinstance(app, str) for app in apps):
        return None
    root = urljoin(look.url, "/").rstrip("/")
    return Finding(
        settings={"type": "adk", "endpoint": root, "app_name": apps[0]},
        because=f"its {_APPS} tells the apps of google-adk's server",
    )
