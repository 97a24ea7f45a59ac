"""What we change in vLLM, each change in a file of its own."""
