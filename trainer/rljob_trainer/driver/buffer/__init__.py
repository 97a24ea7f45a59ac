"""From prompts to batches: generation, scoring, selection, staleness, and what is kept for the next step. Runs in the driver, without torch."""
