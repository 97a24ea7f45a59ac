"""Both ends of a transfer of weights from ranks to rollout servers: protocol, buckets, digests, transports. Torch, and neither megatron nor vLLM."""
