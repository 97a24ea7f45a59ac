"""Transfers weights from the trainer to the rollout servers: verified, staged, and applied completely or not at all. Imports no torch."""
