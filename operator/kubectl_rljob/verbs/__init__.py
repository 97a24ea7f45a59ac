"""Verbs: each reads the cluster or a file, and shows what a pure function of `printers` made of it.

The docstring of a verb's function is its help.
"""
