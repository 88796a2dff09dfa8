"""Two workers that share a store, and the same tool called by clients of 2025-11-25 and of 2026-07-28."""
