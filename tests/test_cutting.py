"""History that gives way: whole exchanges, oldest first, and never what has to stay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import httpx
import pytest

from tests.conftest import Chat, Serve, body
from tests.serving import Running
from tests.sizes import CHAT, EXPLAIN, Message, Reference, Sized, calling, refused, result, said


@pytest.fixture
def engine(sized: tuple[Sized, Running]) -> Sized:
    return sized[0].renew(1_024)


@pytest.fixture
def server(sized: tuple[Sized, Running], engine: Sized) -> Running:
    return sized[1]


SYSTEM = {"role": "system", "content": "Answer with the word KESTREL."}
PARALLEL = [
    SYSTEM,
    {"role": "user", "content": "question one" + " word" * 30},
    calling("c1", "c2", content="calls c1 c2"),
    result("c2", "result c2" + " word" * 40),
    result("c1", "result c1" + " word" * 20),
    {"role": "assistant", "content": "answer one"},
    {"role": "assistant", "content": "and more of it"},
    {"role": "user", "content": "question two"},
    calling("c3", content="calls c3"),
    result("c3", "result c3" + " word" * 60),
    calling("c1", content="calls c1"),  # an id used again, as some models do
    result("c1", "result c1 again"),
    {"role": "assistant", "content": "answer two" + " word" * 10},
    {"role": "user", "content": "question three"},
    calling("c4", "c5", content="calls c4 c5"),
    result("c4", "result c4"),
    result("c5", "result c5"),
]
ONE_CALL = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Check" + " word" * 40},
    calling("c1", content="calls c1"),
    result("c1", "result c1" + " word" * 150),
    {"role": "assistant", "content": "Noted."},
    {"role": "user", "content": "So?"},
]


class TestCuttingHistory:
    @pytest.mark.parametrize("messages", [PARALLEL, ONE_CALL])
    def test_wherever_the_cut_falls_only_whole_exchanges_go(
        self, client: httpx.Client, engine: Sized, reference: Reference, messages: list[Message]
    ) -> None:
        request = body(messages=messages, max_tokens=8, truncation="auto")
        everything = reference.count(messages) + 8
        kept_before, statuses = -1, []
        for engine.window in range(2, everything + 2):
            response = client.post(CHAT, json=request)
            explained = client.post(EXPLAIN, json=request)
            statuses.append(response.status_code)
            assert explained.status_code == response.status_code
            if response.status_code != 200:
                refused(response, "context_length_exceeded", engine.window, 8)
                assert explained.json() == response.json()
                continue
            told = response.json()
            assert told["budget"].items() <= explained.json()["budget"].items()
            assert told["usage"]["prompt_tokens"] + told["budget"]["max_output_tokens"] <= engine.window
            kept = self.kept(messages, reference.turns(engine.started[-1].token_ids)[:-1])
            assert len(messages) - len(kept) == told["budget"]["dropped_messages"]
            assert len(kept) >= kept_before, "a larger window keeps no less"
            kept_before = len(kept)
        assert statuses[0] == 400 and statuses[-1] == 200 and statuses == sorted(statuses, reverse=True)
        assert kept_before == len(messages)

    @staticmethod
    def kept(messages: Sequence[Message], turns: Sequence[tuple[str, str]]) -> list[int]:
        """Which messages a prompt holds, after checking that nothing in it stands alone or misplaced."""
        all_turns = [(message["role"], message["content"]) for message in messages]
        kept = [all_turns.index(turn) for turn in turns]
        last_question = max(at for at, (role, _) in enumerate(all_turns) if role == "user")
        assert kept == sorted(kept) and kept[0] == 0
        assert {*range(last_question, len(messages))} <= {*kept}
        assert all_turns[kept[1]][0] == "user"
        for before, after in pairwise(kept):
            same_role = all_turns[before][0] == all_turns[after][0]
            assert after == before + 1 or not same_role, "two turns of one role meet that were apart"
        for at in range(len(messages)):
            results = _results_of(messages, at)
            assert all((at in kept) == (other in kept) for other in results), "call and result part"
        return kept

    def test_a_cut_leaves_the_system_turn_and_whole_turns_from_a_user_on(
        self, chat: Chat, engine: Sized, reference: Reference
    ) -> None:
        pairs = [(said("user", i % 7 + 12), said("assistant", i % 5 + 12)) for i in range(60)]
        history = [turn for pair in pairs for turn in pair]
        messages = [SYSTEM, *history, {"role": "user", "content": "What is your answer?"}]
        response = chat(messages=messages, max_tokens=16, truncation="auto")
        dropped = response.json()["budget"]["dropped_messages"]
        assert 0 < dropped < 120 and dropped % 2 == 0
        assert response.headers["x-budget-dropped-messages"] == str(dropped)
        assert engine.started[0].token_ids == reference.ids([SYSTEM, *messages[1 + dropped :]])
        one_pair_more = [SYSTEM, *messages[dropped - 1 :]]
        assert reference.count(one_pair_more) + 16 > 1_024, "no more went than had to"
        assert response.json()["usage"]["total_tokens"] <= 1_024

    def test_a_request_decides_over_the_services_policy(self, serve: Serve, chat: Chat) -> None:
        messages = [said("user", 900), said("assistant", 100), said("user", 10)]
        assert chat(messages=messages).status_code == 400
        assert chat(messages=messages, truncation="auto").status_code == 200
        cutting = serve(input_policy="truncate")
        assert cutting.post(CHAT, json=body(messages=messages)).status_code == 200
        refusal = cutting.post(CHAT, json=body(messages=messages, truncation="disabled"))
        refused(refusal, "context_length_exceeded", 1_024)

    @pytest.mark.parametrize(
        "messages",
        [
            [said("system", 1_100), said("user", 5)],
            [said("system", 1_100), said("user", 5), said("assistant", 5), said("user", 5)],
            [said("user", 5), said("assistant", 5), said("user", 1_100)],
            [said("user", 5), calling("c1"), result("c1", "word " * 1_100)],
        ],
    )
    def test_what_may_not_go_and_does_not_fit_is_refused(
        self, chat: Chat, engine: Sized, messages: list[Message]
    ) -> None:
        for truncation in ("disabled", "auto"):
            refused(chat(messages=messages, truncation=truncation), "context_length_exceeded", 1_024, 4)
        assert engine.started == []

    @pytest.mark.parametrize("truncation", ["disabled", "auto"])
    def test_a_result_without_its_call_is_named(self, chat: Chat, truncation: str) -> None:
        orphans = [
            [result("c9", "4 m"), said("user", 5)],
            [said("user", 5), result("c9", "4 m"), said("user", 5)],
            [said("system", 5), result("c9", "4 m")],
        ]
        for messages in orphans:
            at = next(at for at, message in enumerate(messages) if message["role"] == "tool")
            error = chat(messages=messages, truncation=truncation).json()["error"]
            assert error["param"] == f"messages[{at}].tool_call_id"


def _results_of(messages: Sequence[Message], at: int) -> list[int]:
    """Where the results of a turn's calls are: the first of each id behind it."""
    ids = [call["id"] for call in messages[at].get("tool_calls", [])]
    behind = range(at + 1, len(messages))
    return [next(other for other in behind if messages[other].get("tool_call_id") == id) for id in ids]
