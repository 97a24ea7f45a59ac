"""Weights from the trainer to the rollout servers: verified, staged, applied whole or not at all. Importing this imports no torch."""
