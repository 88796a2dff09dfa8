"""A library's own way to run a server, as a user writes it: python -m servers.running FLAVOR PORT."""

import sys
from typing import Any

import tailrope

from .flavors import FastOps, Ops
from .tools import register


def run(flavor: str, port: int) -> None:
    tailrope.install(retry_ms=20)
    server: Any
    if flavor.startswith("fastmcp"):
        import fastmcp

        server = fastmcp.FastMCP("lab")
        register(server.tool, fastmcp.Context, FastOps(True))
        server.run(transport="http", host="127.0.0.1", port=port, show_banner=False)
    elif flavor == "mcp1":
        from mcp.server import fastmcp as mcp_v1

        server = mcp_v1.FastMCP("lab", port=port)
        register(server.tool, mcp_v1.Context, Ops(True))
        server.run(transport="streamable-http")
    else:
        from mcp.server import mcpserver

        server = mcpserver.MCPServer("lab")
        register(server.tool, mcpserver.Context, Ops(True))
        server.run(transport="streamable-http", port=port)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
