"""What to do about a job: `decide.decide` folds the policies over a snapshot, in the order in which `decide.POLICIES` lists them.

A policy is a pure function of the snapshot and of the status that the policies before it have made. It returns a `change.Change`.
"""
