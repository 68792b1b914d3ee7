"""The memory of what was sent: its forecast against comparing everything with everything, and its bound."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from service.prompt.memory import PromptMemory
from service.prompt.prompt import Prompt, Segment
from service.prompt.sent import Sent

BLOCK = 4

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=40)
replies = st.lists(st.integers(0, 1), max_size=12)
sendings = st.lists(st.tuples(st.sampled_from(["a", "b"]), prompts, replies), max_size=20)


def sent(ids: Sequence[int], group: str = "a") -> Sent:
    prompt = Prompt(list(ids), (Segment(0, "content", 0, len(ids)),), 1, "")
    return Sent.of(prompt, ["user"], group=group, owner=group)


def memory(max_bytes: int = 2**20, block: int = BLOCK) -> PromptMemory:
    made = PromptMemory(max_bytes)
    made.open(block)
    return made


def send(to: PromptMemory, ids: Sequence[int], reply: Sequence[int] = (), group: str = "a") -> int:
    """As a request does it: ask, remember the prompt, remember the reply. Gives the forecast."""
    asked = sent(ids, group)
    hashes = to.hashed(asked)
    found = to.recall(asked, hashes)
    number = to.remember(asked, hashes)
    if reply:
        answered = asked.answered(reply)
        to.remember(answered, to.hashed(answered, hashes), instead_of=number)
    return found.known_tokens


def in_whole_blocks(ids: Sequence[int], computed: Sequence[Sequence[int]]) -> int:
    """What an engine that loses nothing has of a prompt, found by comparing one by one."""
    most = (len(ids) - 1) // BLOCK
    have = [
        sum(1 for at in range(1, most + 1) if list(ids[: at * BLOCK]) == list(old[: at * BLOCK]))
        for old in computed
    ]
    return BLOCK * max(have, default=0)


@given(sendings)
def test_the_forecast_is_the_longest_match_in_whole_blocks_within_the_group(
    sendings: list[tuple[str, list[int], list[int]]],
) -> None:
    remembered, computed = memory(), {"a": list[list[int]](), "b": list[list[int]]()}
    for group, ids, reply in sendings:
        assert send(remembered, ids, reply, group) == in_whole_blocks(ids, computed[group])
        computed[group].append([*ids, *reply[:-1]])


@given(sendings, st.integers(900, 6_000))
def test_a_small_memory_forecasts_less_and_never_more(
    sendings: list[tuple[str, list[int], list[int]]], max_bytes: int
) -> None:
    remembered, computed = memory(max_bytes), list[list[int]]()
    for _, ids, reply in sendings:
        assert send(remembered, ids, reply) <= in_whole_blocks(ids, computed)
        assert remembered.used_bytes <= max_bytes
        computed.append([*ids, *reply[:-1]])


def test_what_was_sent_last_is_forgotten_last() -> None:
    ids = [[number] * 40 for number in range(20)]
    remembered = memory(10_000)
    for each in ids:
        send(remembered, each)
    asked = [remembered.recall(made := sent(each), remembered.hashed(made)).known_tokens for each in ids]
    assert asked == sorted(asked)
    assert asked[0] == 0 and asked[-1] == 36


def test_a_conversation_that_goes_on_is_kept_once() -> None:
    remembered, ids = memory(), [7]
    for _ in range(30):
        ids = [*ids, *[1, 2, 3, 4, 5]]
        send(remembered, ids, [6, 7, 8])
        ids = [*ids, 6, 7, 8]
    assert len(remembered) == 1
    assert remembered.used_bytes < 10_000


def test_nothing_is_kept_without_room_and_nothing_known_without_blocks() -> None:
    for remembered in (memory(0), memory(block=0)):
        assert send(remembered, [1] * 40) == 0
        assert send(remembered, [1] * 40) == 0
    assert len(memory(0)) == 0


def test_groups_that_send_the_same_know_nothing_of_each_other() -> None:
    remembered = memory()
    send(remembered, [1] * 40, group="a")
    asked = sent([1] * 40, group="b")
    found = remembered.recall(asked, remembered.hashed(asked))
    assert (found.known_tokens, found.before) == (0, ())


def test_the_memory_counts_about_what_it_takes() -> None:
    chance = random.Random(0)
    for tokens, block in ((1_000, 16), (1_000, 128), (60, 16)):
        remembered = memory(2**26, block)
        tracemalloc.start()
        for _ in range(200):
            send(remembered, [chance.randrange(50_000) for _ in range(tokens)])
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert 0.7 * taken < remembered.used_bytes < 1.5 * taken
