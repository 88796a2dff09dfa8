"""What the suites share: servers under test (`servers`), a raw HTTP client (`raw`) and sessions over it (`peer`)."""
