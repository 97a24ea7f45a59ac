"""ROLL: the pipelines RLVR (algorithm, rewards, rollout), SFT and DPO (supervised), what all share (run, layout, batches), and their YAML (files)."""
