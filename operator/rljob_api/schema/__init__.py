"""What is generated from the contract: the CRD and the reference pages; and the known keys of Megatron and vLLM, as data."""
