"""Prompts of known sizes: the model's own tokenizer to count against, and an engine of any size."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from transformers import AutoTokenizer

from service.engine.protocol import EngineFacts, EngineLoad
from tests.scripted import ScriptedEngine
from tests.serving import Running

CHAT = "/v1/chat/completions"
EXPLAIN = f"{CHAT}/explain"

Message = dict[str, Any]
TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\n|\Z)", re.DOTALL)

# A model of 32 layers with 8 KV heads of 128 numbers, two bytes each.
GROUPED: Mapping[str, Any] = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "dtype": "float16",
}


class Sized(ScriptedEngine):
    """Its window, cache and model can be changed between two requests."""

    def __init__(self) -> None:
        super().__init__()
        self.renew()

    def renew(self, window: int = 1_024, *, cache: int = 0) -> Sized:
        """As if nothing had happened, with these sizes."""
        self.window = window
        self.cache = cache
        self.cache_used = 0
        self.model: Mapping[str, Any] = GROUPED
        self.started.clear()
        return self

    async def aclose(self) -> None:
        """It outlives its servers."""

    @property
    def facts(self) -> EngineFacts:
        return replace(
            super().facts,
            context_window=self.window,
            kv_capacity_tokens=self.cache,
            model_config=self.model,
        )

    @property
    def load(self) -> EngineLoad:
        return replace(super().load, kv_used_tokens=self.cache_used)


class Reference:
    """The model's tokenizer and template as its makers use them, without any of our code."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(model)

    @property
    def size(self) -> int:
        """How many tokens it knows."""
        return len(self._tokenizer)

    def ids(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """The prompt of messages in the plain form this template takes."""
        options.setdefault("add_generation_prompt", not options.get("continue_final_message"))
        plain = [_plain(message) for message in messages]
        made = self._tokenizer.apply_chat_template(plain, tokenize=True, return_dict=False, **options)
        return list(made)

    def count(self, messages: Sequence[Message], **options: Any) -> int:
        return len(self.ids(messages, **options))

    def filled(self, messages: Sequence[Message], tokens: int, **options: Any) -> list[Message]:
        """The messages, with words added to the last one until the prompt has exactly `tokens`."""
        last = messages[-1]
        added = tokens - self.count(messages, **options)
        filled = [*messages[:-1], {**last, "content": last["content"] + " word" * added}]
        assert self.count(filled, **options) == tokens
        return filled

    def turns(self, token_ids: Sequence[int]) -> list[tuple[str, str]]:
        """Role and content of each turn in a prompt; the generation prompt is the last, and empty."""
        text = self._tokenizer.decode(token_ids)
        turns = TURN.findall(text)
        again = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
        assert again.startswith(text), "there is something between the turns"
        return turns

    def control(self, name: str) -> int:
        """The id of a control token."""
        return int(self._tokenizer.convert_tokens_to_ids(name))


def said(role: str, tokens: int, **more: Any) -> Message:
    """A message whose content has so many tokens."""
    return {"role": role, "content": " ".join(["word"] * tokens), **more}


def calling(*ids: str, content: str | None = None) -> Message:
    """An assistant's turn that calls tools, in parallel if there are several ids."""
    calls = [{"id": id, "type": "function", "function": {"name": "depth", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(id: str, content: str) -> Message:
    """What a tool gave back."""
    return {"role": "tool", "tool_call_id": id, "content": content}


def refused(response: httpx.Response, code: str, *figures: int, param: str = "messages") -> str:
    """What a refusal says, after checking that it is one and names these figures."""
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert all(str(figure) in error["message"] for figure in figures), error["message"]
    for words in ("This model's maximum context length is", "prompt is too long"):
        assert (words in error["message"]) == (code == "context_length_exceeded")
    return str(error["message"])


@contextmanager
def probed(server: Running, within_s: float = 5) -> Iterator[None]:
    """While the block runs, `/livez` answers 200 again and again, never `within_s` apart."""
    waits: list[float] = []
    over = threading.Event()

    def probe() -> None:
        with server.client() as client:
            last = time.monotonic()  # from answer to answer: what halts the server halts this thread as well
            while not (waits and over.is_set()):
                alive = client.get("/livez").status_code == 200
                waits.append(time.monotonic() - last if alive else float("inf"))
                last = time.monotonic()
                over.wait(0.02)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
    assert waits and max(waits) < within_s, f"{max(waits, default=0):.1f} s without /livez"


def _plain(message: Message) -> Message:
    """Roles and texts as the template knows them; it shows no tool calls."""
    content = message["content"]
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    role = "system" if message["role"] == "developer" else message["role"]
    return {"role": role, "content": content or ""}
