"""The contract that operator, plugin and trainer share: names, the spec, the status, the runtime protocol, layout arithmetic.

Imports pydantic only, so that a laptop without torch or a cluster can check a job.
"""
