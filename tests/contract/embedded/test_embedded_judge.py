"""A real small language model as a judge, in llama.cpp's own server."""

from adjudge.judges.models.embedded import EmbeddedChatModel

_QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


def test_it_answers() -> None:
    reply = EmbeddedChatModel("smollm2", temperature=0.0, max_tokens=20).chat(_QUESTION)
    assert "Paris" in reply.text
    assert reply.usage is not None


def test_choices_hold() -> None:
    judge = EmbeddedChatModel("smollm2", temperature=1.0, max_tokens=20)
    assert judge.chat(_QUESTION, choices=['Ro"me', "Os lo"]).text in ('Ro"me', "Os lo")
