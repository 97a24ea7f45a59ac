"""A place to look at runs: `view` serves one page, read-only, on loopback."""
