"""ROLL: RLVR (rl), SFT and DPO pipelines, what they share (run), and how they are written (files)."""
