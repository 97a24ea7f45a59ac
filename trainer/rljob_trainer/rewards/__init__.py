"""Reward functions by data source, and what happens when one fails."""
