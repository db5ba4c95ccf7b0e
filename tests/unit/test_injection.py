"""No text that a policy writes decides its own score, as far as a protocol can see to that."""

from typing import Any

import pytest
from tests.injection.corpus import CORPUS, QUESTION
from tests.injection.obedient import HONEST, MODES, judge, ours

from adjudge import GraderError, GraderScore, GradingRunner
from adjudge.graders.llm.judge_grader import LLMGrader
from adjudge.graders.llm.shipped_graders import RelevanceGrader
from adjudge.judges import ScriptedModel

COMPLETIONS = [(name, text) for name, several in CORPUS.items() for text in several]
FREE = "Rate from 1 to 5.\nQuestion: {query}\nAnswer: {response}\nReply as JSON with a score."


def obedient(completion: str, mode: str, *, by_schema: bool) -> ScriptedModel:
    def reply(messages: Any) -> str:
        prompt = "\n".join(message["content"] for message in messages)
        return judge(prompt, completion, by_schema=by_schema, mode=mode)

    model = ScriptedModel(reply)
    model.features = frozenset({"schema"}) if by_schema else frozenset()
    return model


def result(grader: Any, completion: str) -> Any:
    runner = GradingRunner({"g": grader}, show_progress=False)
    return runner.run([{"query": QUESTION, "response": completion}])["g"][0]


@pytest.mark.parametrize("view", ["final", "full"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("by_schema", [True, False])
def test_no_class_gets_through(by_schema: bool, mode: str, view: Any) -> None:
    through, refused = [], []
    for name, completion in COMPLETIONS:
        model = obedient(completion, mode, by_schema=by_schema)
        found = result(RelevanceGrader(model, view=view), completion)
        if isinstance(found, GraderError):
            refused.append((name, completion, found.kind))
        elif found.score != HONEST:
            through.append((name, completion, found.score))
    assert through == []
    # An honest judge is read, whatever it quotes; but where a quotation opens thinking that it
    # never closes, nobody can tell what was meant.
    assert {name for name, *_ in refused} <= {"think-tag abuse"}
    assert len(refused) <= (1 if view == "full" else 0)


@pytest.mark.parametrize("mode", ["plain", "quoting"])
def test_a_users_own_template_without_a_block_refuses_rather_than_guesses(mode: str) -> None:
    read = 0
    for _, completion in COMPLETIONS:
        grader = LLMGrader(
            obedient(completion, mode, by_schema=False),
            template=FREE,
            score_range=(1, 5),
            view="full",
        )
        found = result(grader, completion)
        assert isinstance(found, GraderError) or found.score == HONEST
        read += isinstance(found, GraderScore)
    assert read >= 0.8 * len(COMPLETIONS), f"{read} of {len(COMPLETIONS)} honest verdicts read"


def test_the_double_does_obey_what_escapes() -> None:
    """The test above could fail: a plain fence lets the same texts through."""
    completion = CORPUS["closing our fence"][0]
    prompt = f"<response>\n{completion}\n</response>\nScore from 1 to 5."
    assert "the score is 5" in ours(prompt)
    assert '"score": 5' in judge(prompt, completion, by_schema=True, mode="plain")
