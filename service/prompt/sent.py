"""A conversation as it went to the engine: its token ids, the reply's behind them, and whose they are."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from service.prompt.chain import Ids
from service.prompt.prompt import Prompt, Segment

SYSTEM = "system"


class Sent:
    """Compared by identity; `group` is who may share cached prefixes, `owner` who may read the text again."""

    def __init__(
        self,
        group: str,
        owner: str,
        ids: Ids,
        prompt_tokens: int,
        segments: tuple[Segment, ...],
        roles: tuple[str, ...],
    ) -> None:
        self.group = group
        self.owner = owner
        self.ids = ids
        self.prompt_tokens = prompt_tokens
        self.segments = segments
        self.roles = roles

    @classmethod
    def of(cls, prompt: Prompt, roles: Sequence[str], *, group: str, owner: str) -> Sent:
        """A prompt before its reply; `roles` of its messages, `system` for every kind of instructions."""
        ids = np.frombuffer(array("I", prompt.token_ids), np.uint32)
        return cls(group, owner, ids, len(ids), prompt.segments, tuple(roles))

    def answered(self, reply: Sequence[int]) -> Sent:
        """The same with the tokens of a reply."""
        ids = np.concatenate([self.ids[: self.prompt_tokens], np.frombuffer(array("I", reply), np.uint32)])
        return Sent(self.group, self.owner, ids, self.prompt_tokens, self.segments, self.roles)

    @property
    def computed_tokens(self) -> int:
        """Tokens whose keys and values the engine has made: of a reply all but the last one."""
        return len(self.ids) - (len(self.ids) > self.prompt_tokens)

    @property
    def leading_systems(self) -> int:
        """How many messages at the beginning are instructions."""
        return next((at for at, role in enumerate(self.roles) if role != SYSTEM), len(self.roles))

    def segment_at(self, index: int) -> Segment | None:
        """The stretch a token lies in; None in the reply."""
        at = bisect_right(self.segments, index, key=lambda segment: segment.start) - 1
        return self.segments[at] if index < self.prompt_tokens else None

    def message_at(self, index: int) -> int | None:
        """The message a token belongs to; None where it belongs to no message of the prompt."""
        segment = self.segment_at(index)
        return None if segment is None else segment.message

    def content(self, message: int) -> Ids:
        """The ids of a message's own text."""
        own = [
            self.ids[part.start : part.end]
            for part in self.segments
            if part.message == message and not part.of_template
        ]
        return np.concatenate(own) if own else self.ids[:0]

    def end_of_content(self, message: int) -> int:
        """Where a message's own text ends; 0 if it has none."""
        own = (part.end for part in self.segments if part.message == message and not part.of_template)
        return max(own, default=0)

    @cached_property
    def contents(self) -> tuple[int, ...]:
        """For each message a hash of its role and own text, the same wherever it stands."""
        own: list[list[bytes]] = [[] for _ in self.roles]
        for part in self.segments:
            if part.message is not None and not part.of_template:
                own[part.message].append(self.ids[part.start : part.end].tobytes())
        return tuple(hash((role, b"".join(parts))) for role, parts in zip(self.roles, own, strict=True))

    @cached_property
    def tools(self) -> bytes:
        """The ids of the tool definitions."""
        parts = (part for part in self.segments if part.kind == "tools")
        return b"".join(self.ids[part.start : part.end].tobytes() for part in parts)
