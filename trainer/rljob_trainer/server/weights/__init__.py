"""The servers' end of a transfer of weights: `updates` in the API server, the rest in vLLM's workers."""
