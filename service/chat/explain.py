"""What a request would cost and why, told without running the model."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from service.budget.history import INSTRUCTIONS, kept
from service.budget.kv import KvCost
from service.budget.plan import Budget
from service.chat.capacity import NO_FORMULA
from service.chat.request import ChatRequest
from service.prompt.causes import ADVICE
from service.prompt.difference import Miss
from service.prompt.prompt import Prompt

Part = Literal["system_prompt", "history", "newest_turn", "tool_definitions", "generation_prompt", "other"]

# About how many prompt tokens are read in the time of one decode step: 15 on two CPU cores, over 100 on a
# large GPU. It only chooses what the advice is about; no time is told from it.
PROMPT_TOKENS_PER_STEP = 50
NO_TEXTS: Mapping[str, None] = {"text_before": None, "text_after": None}
TEMPLATES_OWN = ("the chat template's own text", "there is little to save in it")
REMEDIES: Mapping[Part, tuple[str, str]] = {
    "system_prompt": (
        "the system prompt",
        "keep it first and the same in every request, so that it stays cached",
    ),
    "history": ("earlier turns", 'sum them up, or let the oldest go with truncation set to "auto"'),
    "newest_turn": (
        "the newest turn",
        "send less in it, fewer documents for example, and put what changes last",
    ),
    "tool_definitions": ("tool definitions", "offer only those that this request can use"),
    "generation_prompt": TEMPLATES_OWN,
    "other": TEMPLATES_OWN,
}


@dataclass(frozen=True, slots=True)
class Outlook:
    """How many leading tokens should be in the prefix cache, and why no more."""

    forecast_tokens: int
    miss: Miss | None

    def report(self, prompt_tokens: int, spelling: Sequence[bytes] | None) -> dict[str, Any]:
        """The object `cache`. `spelling` has each token's text; without it no text is told."""
        miss = self.miss
        return {
            "forecast_tokens": self.forecast_tokens,
            "uncached_tokens": prompt_tokens - self.forecast_tokens,
            "miss": None
            if miss is None
            else {**miss.report(), **(NO_TEXTS if spelling is None else miss.texts(spelling))},
            "advice": None if miss is None else ADVICE[miss.cause],
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """A request with the prompt and the budget it would run with."""

    request: ChatRequest
    prompt: Prompt
    budget: Budget
    cost: KvCost | None
    cache: Outlook | None  # None: nothing is remembered for this tenant
    predicted: Mapping[str, float | None]  # milliseconds

    def report(self, spelling: Sequence[bytes] | None) -> dict[str, Any]:
        """The answer of the explain route. `spelling` has each token's text; without it no text is told."""
        shares = self._shares()
        phase, advice = self._advice(shares)
        return {
            "prompt_tokens": self.budget.prompt_tokens,
            "budget": {
                **self.budget.report(),
                "input_limited_by": self.budget.input_limited_by,
                "output_limited_by": self.budget.output_limited_by,
                "decided_by": self.budget.decided_by,
            },
            "messages": self._messages(),
            "shares": {
                part: {"tokens": tokens, "share": round(tokens / self.budget.prompt_tokens, 4)}
                for part, tokens in shares.items()
            },
            "kv": self._kv(),
            "cache": None if self.cache is None else self.cache.report(self.budget.prompt_tokens, spelling),
            "predicted": self.predicted,
            "dominated_by": phase,
            "advice": advice,
            "prompt": None if spelling is None else self._prompt(spelling),
        }

    @property
    def _kept(self) -> list[int]:
        """The numbers, in the request, of the messages in the prompt."""
        return kept(self.request.messages, self.budget.dropped_messages)

    def _messages(self) -> list[dict[str, Any]]:
        costs = dict(zip(self._kept, self.prompt.message_tokens, strict=True))
        return [
            {
                "index": index,
                "role": message["role"],
                "dropped": index not in costs,
                "content_tokens": costs[index].content if index in costs else 0,
                "template_tokens": costs[index].template if index in costs else 0,
            }
            for index, message in enumerate(self.request.messages)
        ]

    def _shares(self) -> dict[Part, int]:
        """Where the prompt's tokens go; a message's count the template's around it."""
        shares: dict[Part, int] = dict.fromkeys(REMEDIES, 0)
        roles = [message["role"] for message in self.request.messages]
        newest = max((index for index, role in enumerate(roles) if role == "user"), default=len(roles))
        for index, tokens in zip(self._kept, self.prompt.message_tokens, strict=True):
            part: Part = "newest_turn" if index >= newest else "history"
            shares["system_prompt" if roles[index] in INSTRUCTIONS else part] += sum(tokens)
        for kind, count in self.prompt.shared_tokens.items():
            owner: Mapping[str, Part] = {"tools": "tool_definitions", "generation": "generation_prompt"}
            shares[owner.get(kind, "other")] += count
        return shares

    def _kv(self) -> dict[str, Any]:
        """Memory in the key-value cache. The answers of one request share its prompt."""
        n, prompt = self.request.n or 1, self.budget.prompt_tokens
        total = prompt + n * self.budget.max_output_tokens
        cost = self.cost
        return {
            "bytes_per_token": cost.bytes_per_token if cost else None,
            "prompt_tokens": prompt,
            "prompt_bytes": cost.bytes_for(prompt) if cost else None,
            "total_tokens": total,
            "total_bytes": cost.bytes_for(total) if cost else None,
            "approximate": cost.approximate if cost else NO_FORMULA,
        }

    def _advice(self, shares: Mapping[Part, int]) -> tuple[Literal["prefill", "decode"], str]:
        """The phase that most likely takes longer, and one sentence about it."""
        prompt, output = self.budget.prompt_tokens, self.budget.max_output_tokens
        if (output - 1) * PROMPT_TOKENS_PER_STEP > prompt:
            verb = "set" if self.request.wanted_output_tokens is None else "lower"
            return "decode", (
                f"Writing weighs more than reading: one prefill of {prompt} prompt tokens, then up to "
                f"{output - 1} decode steps; ask for less output, a schema in place of prose for example, "
                f"or {verb} {self.request.output_field}."
            )
        part = max(shares, key=lambda part: shares[part])
        name, remedy = REMEDIES[part]
        return "prefill", (
            f"Reading weighs more than writing: {prompt} prompt tokens for at most {output} of output, and "
            f"{shares[part]} of them are {name}; {remedy}."
        )

    def _prompt(self, spelling: Sequence[bytes]) -> dict[str, Any]:
        kept, ids = self._kept, self.prompt.token_ids
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode  # a character may span a border
        return {
            "text": self.prompt.text,
            "segments": [
                {
                    "message": None if segment.message is None else kept[segment.message],
                    "kind": segment.kind,
                    "token_ids": (own := ids[segment.start : segment.end]),
                    "text": decode(b"".join(spelling[at] for at in own), segment.end == len(ids)),
                }
                for segment in self.prompt.segments
            ],
        }
