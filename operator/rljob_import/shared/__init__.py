"""What several systems share: megatron-core's names, adapters, lengths, paths and files, algorithms, single values."""
