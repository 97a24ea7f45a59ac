"""One module per verb: `arguments(parser)` declares, `run(args, now)` does and returns the exit code.

The module's docstring is the verb's help.
"""
