"""Conversations as tokens: what a policy reads is its template's text, what it wrote stays."""

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given, strategies as st

from adjudge.errors import ConfigError, GradingFailure
from adjudge_lab.environments import OutOfContext
from adjudge_lab.rl.local_player import ChatCodec, TokenConversation

START, END = "\ue000", "\ue001"
Turns = list[dict[str, str]]


class Letters:
    """A tokenizer with a token for each letter, and a template like ChatML."""

    eos_token = END
    eos_token_id = ord(END)
    all_special_tokens = (START, END, "<bos>")
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def apply_chat_template(
        self, turns: Sequence[Any], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        said = "".join(self.turn(turn, place, len(turns)) for place, turn in enumerate(turns))
        return "<bos>" + said + (f"{START}assistant\n" if add_generation_prompt else "")

    def turn(self, turn: Any, _place: int, _count: int) -> str:
        return f"{START}{turn['role']}\n{turn['content']}{END}\n"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(chr(one) for one in ids if chr(one) not in (START, END))


class Rewriting(Letters):
    """Leaves earlier turns of the assistant out when more follow."""

    def turn(self, turn: Any, place: int, count: int) -> str:
        if turn["role"] == "assistant" and place < count - 1:
            return ""
        return super().turn(turn, place, count)


class Endless(Letters):
    """A template without the tokenizer's end token."""

    def turn(self, turn: Any, place: int, count: int) -> str:
        return super().turn(turn, place, count).replace(END, "</s>")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def written(text: str, *, ended: bool = True) -> list[int]:
    return [*map(ord, text), *([ord(END)] if ended else [])]


def conversation(most: int | None = None, tokenizer: Letters | None = None) -> TokenConversation:
    return TokenConversation(ChatCodec(tokenizer or Letters()), most)


def say(one: TokenConversation, text: str, *, ended: bool = True) -> str:
    ids = written(text, ended=ended)
    return one.add_reply(ids, [-float(place) for place in range(len(ids))])


def shown(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


letters = st.text(st.characters(codec="utf-8", exclude_characters=START + END), max_size=8)


@given(
    st.lists(letters, min_size=1, max_size=3),
    st.lists(
        st.tuples(letters, st.booleans(), st.lists(letters, min_size=1, max_size=2)), max_size=4
    ),
)
def test_a_grown_conversation_is_the_templates_text_of_the_whole(
    opening: list[str], rounds: list[tuple[str, bool, list[str]]]
) -> None:
    """Also where replies were cut off; and each token knows who wrote it."""
    one, turns = conversation(), [user(text) for text in opening]
    whole = Letters().apply_chat_template
    drawn = []
    for reply, ended, answers in rounds:
        ids = one.next_prompt(turns, 1)
        assert shown(ids) == whole(turns, tokenize=False, add_generation_prompt=True)
        assert ids == [*one.prompt, *one.completion]
        drawn.append(written(reply, ended=ended) if reply or ended else written("!"))
        text = one.add_reply(drawn[-1], [-1.0] * len(drawn[-1]))
        turns += [assistant(text), *map(user, answers)]
    assert shown(one.next_prompt(turns, 1)) == whole(
        turns, tokenize=False, add_generation_prompt=True
    )
    assert len(one.completion) == len(one.logprobs) == len(one.turns)
    for turn, ids in enumerate(drawn):
        at = [place for place, of in enumerate(one.turns) if of == turn]
        assert [one.completion[place] for place in at] == ids
        assert at == list(range(at[0], at[0] + len(ids)))
    told = [place for place, of in enumerate(one.turns) if of == -1]
    assert all(one.logprobs[place] == 0.0 for place in told)


def test_what_was_drawn_is_never_encoded_again() -> None:
    """Two letters that another encoding would join stay two tokens."""
    one = conversation()
    one.next_prompt([user("a")], 1)
    text = one.add_reply([104, 105, ord(END)], [-1.0, -2.0, -3.0])
    one.next_prompt([user("a"), assistant(text), user("b")], 1)
    assert one.completion[:3] == [104, 105, ord(END)]
    assert one.logprobs[:4] == [-1.0, -2.0, -3.0, 0.0]
    assert one.turns[:4] == [0, 0, 0, -1]


def test_the_end_of_a_reply_that_was_cut_off_is_told_not_written() -> None:
    one = conversation()
    one.next_prompt([user("a")], 1)
    text = say(one, "hi", ended=False)
    one.next_prompt([user("a"), assistant(text), user("b")], 1)
    assert shown(one.completion[:3]) == f"hi{END}"
    assert one.turns[:3] == [0, 0, -1]


@pytest.mark.parametrize(
    "turns",
    [
        [user("A"), assistant("hi"), user("b")],
        [user("a"), assistant("ho"), user("b")],
        [user("b")],
        [user("a")],
        [],
    ],
)
def test_a_history_that_was_rewritten_is_refused(turns: Turns) -> None:
    one = conversation()
    one.next_prompt([user("a")], 1)
    say(one, "hi")
    before = [*one.prompt, *one.completion]
    with pytest.raises(GradingFailure, match="rewritten"):
        one.next_prompt(turns, 1)
    assert [*one.prompt, *one.completion] == before


def test_asking_the_same_again_before_an_answer_reads_the_same() -> None:
    """A task app that asks over HTTP may send its question twice."""
    one = conversation()
    first = one.next_prompt([user("a")], 1)
    assert one.next_prompt([user("a")], 1) == first
    text = say(one, "hi")
    second = one.next_prompt([user("a"), assistant(text), user("b")], 1)
    assert one.next_prompt([user("a"), assistant(text), user("b")], 1) == second
    with pytest.raises(GradingFailure, match="rewritten"):
        one.next_prompt([user("a"), assistant(text), user("b"), user("c")], 1)


def test_a_turn_has_one_reply() -> None:
    one = conversation()
    one.next_prompt([user("a")], 1)
    say(one, "hi")
    with pytest.raises(GradingFailure, match="twice"):
        say(one, "ho")
    assert shown(one.completion) == f"hi{END}"


def test_a_template_that_writes_earlier_turns_anew_is_refused() -> None:
    one = conversation(tokenizer=Rewriting())
    one.next_prompt([user("a")], 1)
    text = say(one, "hi")
    with pytest.raises(GradingFailure, match="writes earlier turns differently"):
        one.next_prompt([user("a"), assistant(text), user("b")], 1)


def test_a_template_that_ends_turns_with_another_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="the tokenizer's eos_token"):
        ChatCodec(Endless())


def test_there_is_room_for_the_reply_or_the_episode_ends() -> None:
    opening = len(conversation().next_prompt([user("abc")], 1))
    one = conversation(most=opening + 5)
    assert len(one.next_prompt([user("abc")], 5)) == opening
    with pytest.raises(OutOfContext):
        conversation(most=opening + 4).next_prompt([user("abc")], 5)
    text = say(one, "hi")
    with pytest.raises(OutOfContext):
        one.next_prompt([user("abc"), assistant(text), user("b")], 1)
    assert shown(one.completion) == f"hi{END}"  # nothing was added that led to no reply
