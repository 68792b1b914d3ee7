"""From chat messages to token ids, every token attributed, in microseconds for what has been seen before.

renderer.py    the front: `Renderer.render` gives a `Prompt`
prompt.py      what it gives, and the options it takes
messages.py    the caller's messages, checked, in the template's form, every text traced to its field
template.py    the chat template: variables in, traced text out, failures in words
  sandbox.py     where it runs: Jinja, time-limited, with marks where messages begin
  dialect.py     its filters and functions
  traced.py      strings that know who wrote them
layout.py      traced text as an unbroken row of runs, each of one origin
piecewise.py   runs to ids: pieces between the template's markers, known ones looked up
  encoders.py    unknown ones tokenized and their tokens counted by run
  pieces.py      what is known, bounded in bytes
  vocabulary.py  control tokens, and the text of every token
rehearsal.py   before the first request: what this template and this tokenizer need
loading.py     the model's tokenizer and templates
"""

from service.prompt.prompt import MessageTokens, Prompt, RenderOptions, Segment
from service.prompt.renderer import Renderer
from service.prompt.template import TemplateUnavailable

__all__ = ["MessageTokens", "Prompt", "RenderOptions", "Renderer", "Segment", "TemplateUnavailable"]
