"""vLLM's AsyncLLM behind the engine protocol. Nothing outside this room imports vLLM.

adapters.py     LoRA adapters into the engine and out of it
arguments.py    the operator's engine arguments over our defaults; what is known of a started engine
engine.py       `VllmEngine`: start, generate, close
grammars.py     constraints in vLLM's words, tried before the engine sees them
generation.py   vLLM's outputs to deltas, handed over from its output loop
load.py         what the engine has to do, from its statistics
params.py       our sampling in vLLM's words
tool_parser.py  calls that a model makes of its own accord, read by vLLM's parsers
translate.py    vLLM's errors in ours
"""

import os

# Before vLLM is imported: no phoning home, and of its log only what an operator can act on.
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# This process has threads by the time the engine starts; a forked child would have half of them.
os.environ.setdefault("VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn")
# What an engine that had to be ended leaves in shared memory is cleaned up by a process of Python's, whose
# warning would come after the sentence that says why.
os.environ["PYTHONWARNINGS"] = ",".join(
    filter(None, (os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker:UserWarning"))
)

from service.engine.vllm.engine import VllmEngine
from service.engine.vllm.tool_parser import parser_for

__all__ = ["VllmEngine", "parser_for"]
