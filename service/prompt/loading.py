"""The model's tokenizer and chat template, from a folder or a model hub; what is missing is told in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from service.errors import shown
from service.prompt.template import TemplateUnavailable


@dataclass(frozen=True, slots=True)
class ModelText:
    """What a model says about its text: tokenizer, templates by name, special tokens by role."""

    tokenizer: Tokenizer
    templates: Mapping[str, str]
    specials: Mapping[str, str]


def load_model_text(
    name: str, *, chat_template: Path | None, trust_remote_code: bool, revision: str | None
) -> ModelText:
    """Load them. Blocking.

    Raises:
        TemplateUnavailable: if the tokenizer or the template cannot be had.
    """
    loaded = _loaded(name, trust_remote_code, revision)
    if not isinstance(backend := getattr(loaded, "backend_tokenizer", None), Tokenizer):
        raise TemplateUnavailable(
            f"the tokenizer of {name} has no fast form (tokenizer.json), which is needed"
        )
    backend.no_truncation()
    backend.no_padding()
    templates = {"default": _read(chat_template)} if chat_template else _named(loaded.chat_template)
    if "default" not in templates:
        raise TemplateUnavailable(
            f"{name} has no chat template; name a Jinja file in TWOPHASE_CHAT_TEMPLATE, or a chat model"
        )
    return ModelText(backend, templates, loaded.special_tokens_map)


def _loaded(name: str, trust_remote_code: bool, revision: str | None) -> Any:
    from transformers import AutoTokenizer  # takes a second to import, and only this needs it

    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code, revision=revision)
    except Exception as exc:  # transformers raises whatever a model's files made it raise
        reason = shown(str(exc).strip(), 300) or type(exc).__name__
        raise TemplateUnavailable(f"the tokenizer of {name} cannot be loaded: {reason}") from exc


def _named(templates: str | Mapping[str, str] | None) -> Mapping[str, str]:
    return {"default": templates} if isinstance(templates, str) else templates or {}


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise TemplateUnavailable(f"the chat template {path} cannot be read: {exc}") from None
