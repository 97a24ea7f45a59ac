"""From prompts to batches: generation, scoring, selection, and what is kept for the next step."""
