"""Arithmetic of a spec: ranks, samples, bytes per communicator, bytes per GPU."""
