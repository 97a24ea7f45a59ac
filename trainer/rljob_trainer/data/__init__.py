"""Prompts: read from files, tokenized, filtered, and drawn in an order that only seed and epoch decide."""
