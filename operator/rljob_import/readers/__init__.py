"""Readers of what people write, which execute nothing: shell scripts, command lines of Hydra, interpolations in YAML."""
