"""Rewards: who judges a response, by data source, and what happens when a judge fails."""
