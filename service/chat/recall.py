"""What was sent before, asked for one request: how much of its prompt is cached, and what ends the match."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from service.admission.tenant import Tenant
from service.budget.history import INSTRUCTIONS, kept
from service.budget.plan import Budget
from service.chat.request import ChatRequest
from service.prompt.difference import Miss, Spelling, find_miss
from service.prompt.memory import PromptMemory, Recollection
from service.prompt.prompt import Prompt
from service.prompt.sent import Sent

LOOP_TOKENS = 50_000  # longer prompts are hashed in a thread: milliseconds, in which no stream would move

log = logging.getLogger(__name__)


class Recall:
    """The memory's view of one request; it learns the request's own tokens with `sent` and `answered`."""

    def __init__(
        self, memory: PromptMemory, found: Recollection, numbers: list[int], cut: bool, spelling: Spelling
    ) -> None:
        self.forecast_tokens = found.known_tokens
        self.replies: list[list[int]] = []
        self._memory = memory
        self._found = found
        self._numbers = numbers  # of the prompt's messages, in the request
        self._cut = cut
        self._spelling = spelling
        self._number = 0

    def miss(self) -> Miss | None:
        """Why no more is cached, with the message's number in the request."""
        found = self._found
        try:
            miss = find_miss(found.sent, found.before, found.known_tokens, self._spelling, dropped=self._cut)
        except Exception:  # an answer is never lost to what only explains it
            log.exception("a miss of the prefix cache could not be explained")
            return None
        if miss is None or miss.message is None:
            return miss
        return replace(miss, message=self._numbers[miss.message])

    def sent(self, n: int) -> None:
        """The prompt has gone to the engine, for `n` replies."""
        self.replies = [[] for _ in range(n)]
        self._number = self._memory.remember(self._found.sent, self._found.hashes)

    def answered(self) -> None:
        """The replies are what they will be."""
        for reply in filter(None, self.replies):
            sent = self._found.sent.answered(reply)
            hashes = self._memory.hashed(sent, self._found.hashes)
            self._memory.remember(sent, hashes, instead_of=self._number)


async def recall(
    memory: PromptMemory,
    request: ChatRequest,
    prompt: Prompt,
    budget: Budget,
    *,
    tenant: Tenant,
    group: str,
    spelling: Spelling,
) -> Recall | None:
    """What is known of a request; None where the tenant wants nothing remembered."""
    if not tenant.remember_prompts:
        return None
    numbers = kept(request.messages, budget.dropped_messages)
    roles = [_role(request.messages[number]["role"]) for number in numbers]
    sent = Sent.of(prompt, roles, group=group, owner=tenant.name)
    large = sent.prompt_tokens > LOOP_TOKENS
    hashes = await asyncio.to_thread(memory.hashed, sent) if large else memory.hashed(sent)
    return Recall(memory, memory.recall(sent, hashes), numbers, budget.dropped_messages > 0, spelling)


def _role(role: str) -> str:
    return "system" if role in INSTRUCTIONS else role
