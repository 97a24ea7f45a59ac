"""The trainer of an RLJob. A folder is a process, or what several processes share; its first lines say which, and what its code may import.

pod/        PID 1 of a pod: starts, watches and ends the other processes
rank/       one rank of an attempt: the training loop. Imports torch, and megatron/
driver/     the process alongside rank 0 that reads data, generates and scores. asyncio, without torch
server/     inside vLLM: its API server, and its workers when they receive weights
wire/       what these processes exchange
"""
