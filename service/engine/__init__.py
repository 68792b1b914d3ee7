"""The engine behind one small protocol; `vllm` is the only module that imports vLLM."""
