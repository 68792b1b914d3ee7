"""Where a prompt parts from what was sent before, and why: by token ids, never by what text looks like.

The rules, in their order. Up to the first difference all ids are the same.

1. One of the two has no token there: nothing differs. Tokens that were sent before and are read again
   all the same lie behind the last whole block: block boundary.
2. The two have nothing else in common, no message and no similar system prompt: never seen.
3. Tool definitions differ, and it lies in them or in the template's text before them: tools changed.
4. The instructions at the beginning differ, and it lies in them: system prompt changed.
5. It lies in template arguments, or outside every message, or in the template's text around the
   same content: template changed.
6. The message there stood further back before: history truncated. What stood there comes later
   now: message inserted. The service itself has just left out the turns before: history truncated.
7. A reply stood there, and an assistant's message does now: reply re-tokenized when its text is in
   that of the reply, else message edited. Template changed when the template's own words before
   the reply are not there any more.
8. Its successor is the same as before, or half of it or more is: message edited. Else never seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from service.prompt.causes import Cause
from service.prompt.chain import Ids
from service.prompt.sent import Sent

SHOWN_TOKENS = 16  # of text before and after

Spelling = Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Miss:
    """The first token that is read although it, or another in its place, was sent before."""

    index: int
    message: int | None  # None: it belongs to no message
    cause: Cause
    before: tuple[int, ...] | None = None  # ids from there on as they were; None: not this caller's to see
    after: tuple[int, ...] = ()  # and as they are

    def report(self) -> dict[str, int | str | None]:
        """The object `miss` of response bodies: nobody's text."""
        return {"index": self.index, "message": self.message, "cause": self.cause}

    def texts(self, spelling: Spelling) -> dict[str, str | None]:
        """The text from there on, as it was and as it is."""
        before = None if self.before is None else _text(self.before, spelling)
        return {"text_before": before, "text_after": _text(self.after, spelling)}


def first_difference(new: Ids, old: Ids) -> int:
    """How many leading ids are the same."""
    common = min(len(new), len(old))
    differs = new[:common] != old[:common]
    at = int(differs.argmax()) if common else 0
    return at if common and differs[at] else common


def find_miss(
    new: Sent, before: Iterable[Sent], reused: int, spelling: Spelling, *, dropped: bool = False
) -> Miss | None:
    """Why no more than `reused` leading tokens of `new` are in the cache; None: no more could be.

    `before` is what was sent before, the latest first. `dropped`: the service has left out history.
    """
    old = closest(new, before, reused)
    if old is None:
        return Miss(0, new.message_at(0), "never seen", after=_shown(new.ids, 0))
    at = first_difference(new.ids, old.ids)
    if at < min(len(new.ids), len(old.ids)):
        cause = cause_of(new, old, at, spelling, dropped=dropped)
    elif reused < min(at, old.computed_tokens, len(new.ids) - 1):
        at, cause = reused, "block boundary"
    else:
        return None
    own = new.owner == old.owner and cause != "never seen"
    stood = _shown(old.ids, at) if own else None
    return Miss(at, new.message_at(at), cause, stood, _shown(new.ids, at))


def closest(new: Sent, before: Iterable[Sent], reused: int) -> Sent | None:
    """The conversation that `new` most likely goes on from, among those that explain what is reused.

    The one that is contained, else the one with most messages in common, else with the longest match.
    """
    best, most = None, (-1, -1)
    for old in before:
        at = first_difference(new.ids, old.ids)
        if at < reused:
            continue
        if at == min(len(new.ids), len(old.ids)):
            return old
        if (rank := (_shared(new, old), at)) > most:
            best, most = old, rank
    return best


def cause_of(new: Sent, old: Sent, at: int, spelling: Spelling, *, dropped: bool = False) -> Cause:
    """Why two conversations part at token `at`, which both have. See the rules above."""
    if not (_shared(new, old) or _alike(_instructions(new), _instructions(old))):
        return "never seen"
    if (cause := _of_the_head(new, old, at)) is not None:
        return cause
    here, there = new.message_at(at), _message_at(old, at)
    message = there if here is None else here
    if message is None:
        return "template changed"
    if message >= len(new.roles):
        return "history truncated"
    if message >= len(old.roles) or at >= old.prompt_tokens:  # the reply may go on from the last message
        return _of_the_reply(new, old, at, message, spelling)
    return _of_a_message(new, old, message, dropped)


def _of_the_head(new: Sent, old: Sent, at: int) -> Cause | None:
    """Causes before the conversation itself."""
    here, there = new.segment_at(at), old.segment_at(at)
    if here is None or there is None:
        return None
    of_template = here.of_template or there.of_template
    of_tools = of_template or "tools" in (here.kind, there.kind)
    if of_tools and new.tools != old.tools and at < max(_end_of_tools(new), _end_of_tools(old)):
        return "tools changed"
    in_system = any(
        part.message is not None and part.message < sent.leading_systems
        for part, sent in ((here, new), (there, old))
    )
    if in_system and _system_contents(new) != _system_contents(old):
        return "system prompt changed"
    if "argument" in (here.kind, there.kind):
        return "template changed"
    return None


def _of_a_message(new: Sent, old: Sent, message: int, dropped: bool) -> Cause:
    """Causes within the conversation; `message` is the first one that is not as before."""
    now, then = new.contents[message:], old.contents[message:]
    if now[0] == then[0]:
        return "template changed"
    gone = then.index(now[0]) if now[0] in then else len(then)
    come = now.index(then[0]) if then[0] in now else len(now)
    if gone < len(then) and (gone <= come or come == len(now)):
        return "history truncated"
    if come < len(now):
        return "message inserted"
    if dropped and message == new.leading_systems:
        return "history truncated"
    same_next = len(now) > 1 and now[1:2] == then[1:2]
    same_role = new.roles[message] == old.roles[message]
    if same_role and (same_next or _alike(new.content(message), old.content(message))):
        return "message edited"
    return "never seen"


def _of_the_reply(new: Sent, old: Sent, at: int, message: int, spelling: Spelling) -> Cause:
    """Causes where the reply stood, or the text that asked for it."""
    if new.roles[message] != "assistant":
        pushed_back = "assistant" in new.roles[message + 1 : message + 2]
        return "message inserted" if pushed_back else "never seen"
    if at < old.prompt_tokens:  # a reply may melt into one token with the last one that asked for it
        now = _text(new.ids[at : new.end_of_content(message)].tolist(), spelling)
        then = _text(old.ids[at:].tolist(), spelling)
        return "reply re-tokenized" if now and then.startswith(now) else "template changed"
    reply = _text(old.ids[old.prompt_tokens :].tolist(), spelling).strip()
    if message < len(old.roles):  # it went on from what the message had said before
        text = _text(new.ids[old.prompt_tokens : new.end_of_content(message)].tolist(), spelling).strip()
        same = reply.startswith(text)
    else:
        text = _text(new.content(message).tolist(), spelling).strip()
        same = text in reply or _called(new, message, reply, spelling)
    return "reply re-tokenized" if text and same else "message edited"


def _called(new: Sent, message: int, reply: str, spelling: Spelling) -> bool:
    """Whether the parts of a message with calls, which the template marks and spaces, are the reply's."""
    rest = "".join(reply.split())
    own = [part for part in new.segments if part.message == message and not part.of_template]
    for part in own:
        before, found, rest = rest.partition("".join(_text(new.ids[part.start : part.end], spelling).split()))
        if not found:
            return False
    return len(own) > 1


def _message_at(old: Sent, at: int) -> int | None:
    return len(old.roles) if at >= old.prompt_tokens else old.message_at(at)


def _shared(new: Sent, old: Sent) -> int:
    """How many messages are in both, wherever."""
    return len(set(new.contents).intersection(old.contents))


def _alike(new: Ids, old: Ids) -> bool:
    """Whether half of the longer one or more is the same from the beginning and from the end."""
    longest, shortest = max(len(new), len(old)), min(len(new), len(old))
    if not shortest:
        return False
    head = first_difference(new, old)
    tail = min(first_difference(new[::-1], old[::-1]), shortest - head)
    return 2 * (head + tail) >= longest


def _instructions(sent: Sent) -> Ids:
    parts = [sent.content(message) for message in range(sent.leading_systems)]
    return np.concatenate(parts) if parts else sent.ids[:0]


def _system_contents(sent: Sent) -> tuple[int, ...]:
    return sent.contents[: sent.leading_systems]


def _end_of_tools(sent: Sent) -> int:
    return max((part.end for part in sent.segments if part.kind == "tools"), default=0)


def _text(ids: Iterable[int], spelling: Spelling) -> str:
    """Of ids beyond the tokenizer's own, which a model may write, there is none."""
    return b"".join(spelling[at] for at in ids if at < len(spelling)).decode(errors="replace")


def _shown(ids: Ids, start: int) -> tuple[int, ...]:
    return tuple(ids[start : start + SHOWN_TOKENS].tolist())
