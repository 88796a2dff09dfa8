"""Stock clients with the one line and without it."""
