"""verl: `main_ppo` and its relatives (rows, algorithm, roles), the SFT trainer (sft), and how both are written (files)."""
