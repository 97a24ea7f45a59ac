"""Commands that people and builds run: checks of a machine, an export, lists of what upstream packages have. Each is a process that ends."""
