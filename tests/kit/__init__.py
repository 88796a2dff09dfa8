"""What all suites share: servers under test (`servers`), a raw HTTP client (`raw`) and MCP sessions over it (`peer`)."""
