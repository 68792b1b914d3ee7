"""A tokenizer's tokens: which of them only a template may write, and what text each of them stands for."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer


class Control(NamedTuple):
    """A control token: its id, and whether it swallows the white space before and after it."""

    id: int
    lstrip: bool
    rstrip: bool


class Vocabulary:
    """What has to be known of a tokenizer to use it piece by piece.

    Control tokens are those the tokenizer calls special, and whatever other added token the template's source
    spells out (DeepSeek's turn markers are not "special"). `plain` is a copy of the tokenizer that reads
    their names as plain characters, and knows one token more: `guard`, whose name nobody can guess.
    """

    def __init__(self, tokenizer: Tokenizer, template_sources: Iterable[str]) -> None:
        recipe: dict[str, Any] = json.loads(tokenizer.to_str())
        sources = "\n".join(template_sources)
        self.controls = {
            token["content"]: Control(token["id"], token["lstrip"], token["rstrip"])
            for token in recipe["added_tokens"]
            if token["special"] or (token["content"] in sources and not token["content"].isspace())
        }
        self.special_ids = frozenset(token["id"] for token in recipe["added_tokens"] if token["special"])
        self.guard = f"<{secrets.token_hex(16)}>"  # ASCII, or it would make every text it is put before wide
        self.plain = _plain_copy(recipe, self.controls.keys(), self.guard)
        self.bytes_by_id = _bytes_by_id(recipe, tokenizer.get_vocab(with_added_tokens=False))
        self.longest = max(map(len, self.bytes_by_id)) * _shrinking(recipe)  # bytes of text; 0: unknown


def _shrinking(recipe: Mapping[str, Any]) -> int:
    """By how much a tokenizer may shorten what it reads, at most; 0 where nobody can say.

    A byte-level one makes tokens of every byte. Composing accents (NFC) leaves a third at least. What
    drops white space, or has one token for whatever it does not know, may make few tokens of anything.
    """
    kinds = set(re.findall(r'"type": "(\w+)"', json.dumps([recipe["pre_tokenizer"], recipe["normalizer"]])))
    swallows = any(token["lstrip"] or token["rstrip"] for token in recipe["added_tokens"])
    drops = '"Removed"' in json.dumps(recipe["pre_tokenizer"])
    if swallows or drops or "ByteLevel" not in kinds or recipe["model"]["type"] != "BPE":
        return 0
    if kinds - {"ByteLevel", "Digits", "Split", "Sequence", "NFC"}:
        return 0
    return 3 if "NFC" in kinds else 1


def _plain_copy(recipe: Mapping[str, Any], controls: Container[str], guard: str) -> Tokenizer:
    added = [{**token, "special": token["content"] in controls} for token in recipe["added_tokens"]]
    bare = {"added_tokens": added, "post_processor": None, "truncation": None, "padding": None}
    copy = Tokenizer.from_str(json.dumps({**recipe, **bare}))
    copy.encode_special_tokens = True
    copy.add_tokens([AddedToken(guard, normalized=False, special=False)])
    return copy


def _bytes_by_id(recipe: Mapping[str, Any], vocabulary: Mapping[str, int]) -> list[bytes]:
    """The text of each token, if it has one of its own; a guess, used only where it proves right."""
    by_byte = "ByteLevel" in json.dumps(recipe["decoder"])
    text_of = _of_byte_level() if by_byte else _of_word_pieces
    added = {token["content"]: token["id"] for token in recipe["added_tokens"]}
    table = [b""] * (max([*vocabulary.values(), *added.values()]) + 1)
    for token, at in vocabulary.items():
        table[at] = text_of(token)
    for token, at in added.items():
        table[at] = token.encode() if by_byte else text_of(token)
    return table


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds any of the names, the longest where several begin; nothing if there are none."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")


def _of_byte_level() -> Callable[[str], bytes]:
    """Byte-level tokenizers write each byte as a printable character: itself, or one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    back = {0x100 + at: byte for at, byte in enumerate(hidden)}
    return lambda token: token.translate(back).encode("latin-1", "ignore")


def _of_word_pieces(token: str) -> bytes:
    """Others write a space as U+2581, and bytes without a token of their own as <0xNN>."""
    if re.fullmatch(r"<0x[0-9A-F]{2}>", token):
        return bytes.fromhex(token[3:5])
    return token.replace("\u2581", " ").encode()
