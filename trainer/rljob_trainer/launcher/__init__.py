"""PID 1 of a trainer pod: runs one attempt after another, as the operator's control messages say, and reports how each ended."""
