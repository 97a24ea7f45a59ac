"""`kubectl rljob`: inspect jobs, suspend and resume them, check manifests before they are applied.

A verb is a function of `verbs`: it reads the cluster or a file, and shows what a pure function of `printers` made of
it. Everything is written by `terminal`.
"""
