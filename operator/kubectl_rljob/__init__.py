"""`kubectl rljob`: look at jobs, suspend and resume them, check a manifest before it is applied.

A verb is a function of `verbs`: it reads the cluster or a file, and shows what a pure function of `printers` made of
it. Everything is written by `terminal`.
"""
