"""Where the stores of tests are: in memory, in a file, on the servers that the environment names."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

# On which store every run asks a server what stores are for; the long run asks it on all. What a store does is the
# engine's, and how that comes to a handler is the server's: here each server has a store, and each store a few servers.
OF_EVERY_RUN = {
    "mcp1": "sqlite",
    "mcp2": "redis",
    "mcp2-front": "redis",
    "fastmcp3": "postgres",
    "fastmcp4": "sqlite",
    "node-v2": "postgres",
    "tower": "sqlite",
    "tower-front": "sqlite",
    "rmcp": "sqlite",
}


def empty_place(store: str, folder: Path) -> str:
    """The address of a store with nothing in it. Raises KeyError when no server of the kind runs."""
    if store == "memory":
        return "memory:"
    if store == "sqlite":
        return f"sqlite:{folder / 'events.db'}"
    server = os.environ[f"TAILROPE_TEST_{store.upper()}"]
    return f"{server}{'&' if '?' in server else '?'}namespace=t{uuid.uuid4().hex[:12]}"
