"""Trinity-RFT: explorer and trainer together (rl), SFT and DPO (supervised), what they share (run)."""
