"""Prompts: read from files, tokenized, filtered, and taken in an order that only seed and epoch decide."""
