"""One rank of an attempt: starts, restores, runs the training loop, and talks to the driver. Torch and megatron; it calls collectives and never
serves requests.
"""
