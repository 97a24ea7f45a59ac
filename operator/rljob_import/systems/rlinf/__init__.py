"""RLinf: reasoning jobs."""
