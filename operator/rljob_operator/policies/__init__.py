"""Policies: what to do about a job. `decide.decide` folds them over a snapshot, in the order of `decide.POLICIES`.

A policy is a pure function of the snapshot and of the status that the policies before it have made. It returns a `change.Change`.
"""
