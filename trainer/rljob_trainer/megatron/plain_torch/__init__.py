"""Transformer Engine's part in plain torch: layers and attention of a trainer on CPUs, or on GPUs whose image has no Transformer Engine."""
