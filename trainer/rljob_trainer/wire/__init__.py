"""What the trainer's processes exchange, as values and as bytes. All of them import it, so it has no torch, but for `collective` and `weights`."""
