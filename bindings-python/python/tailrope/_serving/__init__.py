"""`tailrope.serve`: an app on its own HTTP server, with Tailrope's own listener in front of it."""
