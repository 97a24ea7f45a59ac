"""Generation: a vLLM server behind our own front, its supervisor, and the client that spreads prompts over the servers."""
