"""Rollouts: vLLM servers behind an ASGI middleware, their supervisor, and the pool that distributes prompts over them."""
