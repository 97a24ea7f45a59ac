"""Pure functions from what was observed to what is printed. None of them does I/O or reads a clock."""
