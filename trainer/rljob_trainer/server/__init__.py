"""Inside vLLM: the middleware of its API server, the route that generates, and how its workers receive weights. Torch and vLLM; no megatron."""
