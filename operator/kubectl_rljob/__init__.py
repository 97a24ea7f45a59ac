"""`kubectl rljob`: look at jobs, hold and continue them, check a manifest before it is applied.

A verb is one module of `verbs`: it reads the cluster or a file, and prints what a
pure function of `printers` made of it.
"""
