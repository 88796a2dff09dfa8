"""Every official client against every server."""
