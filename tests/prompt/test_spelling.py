"""Tokens find their text again, whatever the tokenizer, and however the stream was cut."""

from __future__ import annotations

from hypothesis import assume, example, given
from hypothesis import strategies as st

from service.chat.spelling import Alphabet, Spelled, Speller
from tests.prompt.conftest import Model
from tests.tokens import deltas, merged

WORDS = st.one_of(
    st.sampled_from(
        ["Hello", " world", "👩‍👩‍👧", "né", "汉字", "\n\n", "  ", "🏳️‍🌈", "ſ", " ", "a", "<", "Zürich"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
)
TEXTS = st.lists(WORDS, min_size=1, max_size=20).map("".join).filter(bool)
STOPS = st.sampled_from(["", "o w", "字", "\n\n", "🏳️", "zzzz"])
SEEDS = st.integers(0, 2**16)


def test_every_token_has_its_own_bytes_and_joined_they_are_the_text(model: Model) -> None:
    tokenizer, vocabulary = model.renderer._tokenizer, model.renderer.vocabulary
    alphabet = Alphabet(vocabulary.bytes_by_id, vocabulary.special_ids)

    @given(text=TEXTS, stop=STOPS, seed=SEEDS, logged=st.booleans())
    @example(text="👩‍👩‍👧", stop="", seed=0, logged=True)
    def holds(text: str, stop: str, seed: int, logged: bool) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assume(ids and tokenizer.decode(ids) == text)  # not every tokenizer knows every byte
        parts = list(deltas(tokenizer, ids, stop=stop, logprobs=logged))
        speller, tokens = Speller(alphabet), list[Spelled]()
        for part in merged(parts, seed):
            taken = speller.take(part)
            assert b"".join(token.spelled for token in taken).decode() == _text(taken)
            if part.finish is None:
                assert all(token.spelled == alphabet.shown(token.token_id) for token in taken)
            tokens += taken
        assert _text(tokens) == "".join(part.text for part in parts)
        assert [token.token_id for token in tokens] == [at for part in parts for at in part.token_ids]

    holds()


def test_no_text_and_no_token_is_lost_even_where_bytes_make_no_characters(model: Model) -> None:
    tokenizer, vocabulary = model.renderer._tokenizer, model.renderer.vocabulary
    alphabet = Alphabet(vocabulary.bytes_by_id, vocabulary.special_ids)

    @given(
        drawn=st.lists(st.integers(0, 10**6) | st.integers(0, 300), min_size=1),
        stop=STOPS,
        seed=SEEDS,
        logged=st.booleans(),
    )
    def holds(drawn: list[int], stop: str, seed: int, logged: bool) -> None:
        ids = [at % len(alphabet.bytes_by_id) for at in drawn]
        parts = list(deltas(tokenizer, ids, stop=stop, logprobs=logged))
        for stream in (parts, merged(parts, seed)):
            speller = Speller(alphabet)
            tokens = [token for part in stream for token in speller.take(part)]
            assert _text(tokens) == "".join(part.text for part in parts)
            assert [token.token_id for token in tokens] == [at for part in parts for at in part.token_ids]

    holds()


def _text(tokens: list[Spelled]) -> str:
    return "".join(token.text for token in tokens)
