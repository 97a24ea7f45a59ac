"""Shell scripts, read without executing anything: their tokens, their conditions, and an interpreter of what is between them."""
