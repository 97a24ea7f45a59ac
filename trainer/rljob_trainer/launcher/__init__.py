"""PID 1 of a trainer pod: runs one attempt after another as the operator's control says, and reports what came of each."""
