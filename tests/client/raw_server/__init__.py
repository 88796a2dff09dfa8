"""A scripted MCP server over raw sockets, of revision 2025-11-25, which has nothing of Tailrope or of an SDK in it."""
