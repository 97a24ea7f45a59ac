"""Trinity-RFT: `mode: both` of explorer and trainer (rl), and `mode: train` on files (supervised)."""
