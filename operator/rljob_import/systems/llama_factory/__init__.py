"""LLaMA-Factory: its flat YAML (flat), its data sets (sets), and its v1 form (v1)."""
