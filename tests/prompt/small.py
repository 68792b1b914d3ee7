"""Small tokenizers made on the spot, for what no published one shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from service.prompt import Renderer
from service.prompt.loading import ModelText

MARKERS = ("<|begin|>", "<|user|>", "<|end|>")
TEXTS = [
    "Name three rivers and the seas they reach. The sounding said four metres; they asked again.",
    "A template writes markers, a caller writes words; neither may be taken for the other, ever.",
    '{"place": "Reykjavik", "depth": 4} ünïcode 東京 \N{FOX FACE} e\N{COMBINING ACUTE ACCENT}',
] * 4
CHATML = (
    "{{ '<|begin|>' }}{% for message in messages %}"
    "{{ '<|user|>' + message.role + '\n' + message.content + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|user|>assistant\n' }}{% endif %}"
)


def byte_level(*, markers: Sequence[str | AddedToken] = MARKERS, compose: bool = False) -> Tokenizer:
    """A byte-level tokenizer; with `compose` it joins accents and letters first."""
    tokenizer = Tokenizer(models.BPE())
    if compose:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(tokenizer, markers, pre_tokenizers.ByteLevel.alphabet())


def word_pieces(*, prepend: str) -> Tokenizer:
    """A tokenizer that writes spaces as a mark of their own, and puts one before the text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend)
    return _trained(tokenizer, ("<unk>", *MARKERS), [])


def renderer(
    tokenizer: Tokenizer | None = None,
    template: str = CHATML,
    *,
    specials: Mapping[str, str] | None = None,
    **settings: Any,
) -> Renderer:
    """A renderer of a made-up model."""
    model = ModelText(tokenizer or byte_level(), {"default": template}, specials or {})
    return Renderer(model, **{"template_kwargs": {}, **settings})


def transformers_of(tokenizer: Tokenizer, template: str = CHATML) -> Any:
    """The same model as transformers sees it."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template)


def _trained(tokenizer: Tokenizer, markers: Sequence[str | AddedToken], alphabet: list[str]) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=list(markers), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer
