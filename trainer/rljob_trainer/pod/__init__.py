"""PID 1 of a pod, one for each role: `launcher` runs attempts of trainer pods, `supervisor` keeps one vLLM server running. Both follow the operator's
control object and report. asyncio, without torch, megatron and vLLM, except where ranks are forked (`agent`).
"""
