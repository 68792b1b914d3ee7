"""Benchmarks: Twophase, bare AsyncLLM and `vllm serve`, side by side in one run."""
