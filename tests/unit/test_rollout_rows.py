"""Files of other programs: read at once, or by the options that the refusal prints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adjudge.cli.main import app
from adjudge.cli.options import parse_map
from adjudge.errors import ConfigError
from adjudge.rollouts.formats.base import SAMPLE_FIELDS
from adjudge.rollouts.samples import SampleReader

Q, A, B = "What is 2 + 2?", "It is 4.", "It is 5."
ASK = [{"role": "user", "content": Q}]
TALK = [*ASK, {"role": "assistant", "content": A}]
_OPTIONS = re.compile(r"(?:(?:--rows|-m) [^\s:]+(?= |$) ?)+")


def read(path: Path, options: str = "") -> SampleReader:
    words = shlex.split(options)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    rows = next((value for name, value in pairs if name == "--rows"), None)
    maps = [value for name, value in pairs if name == "-m"]
    return SampleReader([path], parse_map(maps, SAMPLE_FIELDS, rows))


def write(folder: Path, records: Any) -> Path:
    """A list as JSON lines, an object as a document."""
    path = folder / ("rows.jsonl" if isinstance(records, list) else "rows.json")
    lines = records if isinstance(records, list) else [records]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def printed_options(path: Path, options: str = "") -> str:
    with pytest.raises(ConfigError) as refusal:
        list(read(path, options))
    found = [one.strip() for one in _OPTIONS.findall(str(refusal.value)) if "COLUMN" not in one]
    return found[-1] if found else ""


# What each program writes, cut down; the options that its refusal prints; prompt, response, reward.
OF_PROGRAMS: dict[str, tuple[Any, str, list[tuple[Any, Any, Any]]]] = {
    "alpaca": (
        [
            {"instruction": "Translate.", "input": "red", "output": "rouge"},
            {"instruction": "Say hi.", "input": "", "output": "Hi."},
        ],
        "",
        [("Translate.\n\nred", "rouge", None), ("Say hi.", "Hi.", None)],
    ),
    "alpaca-eval outputs": (
        [{"dataset": "d", "instruction": Q, "output": A, "generator": "m"}],
        "",
        [(Q, A, None)],
    ),
    "alpaca dpo": (
        [{"instruction": "Translate.", "input": "red", "chosen": A, "rejected": B}],
        "",
        [("Translate.\n\nred", A, 1.0), ("Translate.\n\nred", B, 0.0)],
    ),
    "alpaca-eval annotations": (
        [{"instruction": Q, "output_1": B, "output_2": A, "preference": 1.9}],
        "",
        [(Q, B, 0.0), (Q, A, 1.0)],
    ),
    "kto": (
        [
            {"prompt": Q, "completion": A, "label": True},
            {"prompt": Q, "completion": B, "label": False},
        ],
        "",
        [(Q, A, 1.0), (Q, B, 0.0)],
    ),
    "ragas": ([{"user_input": Q, "retrieved_contexts": ["c"], "response": A}], "", [(Q, A, None)]),
    "ragas before 0.2": (
        [{"question": Q, "contexts": ["c"], "answer": A, "ground_truth": "4"}],
        "",
        [(Q, A, None)],
    ),
    "attempts as objects": (
        [
            {
                "question": Q,
                "gold": "4",
                "rollouts": [{"text": A, "correct": True}, {"text": B, "correct": False}],
            }
        ],
        "",
        [(Q, A, 1.0), (Q, B, 0.0)],
    ),
    "attempts as texts": (
        [{"prompt": Q, "response": [A, B], "reward": [1, 0]}],
        "",
        [(Q, A, 1.0), (Q, B, 0.0)],
    ),
    "attempts as conversations": (
        [{"question": Q, "trials": [{"messages": TALK, "reward": 1}]}],
        "",
        [(Q, A, 1.0)],
    ),
    "lighteval": (
        [
            {
                "doc": {"query": Q, "choices": ["4"], "gold_index": [0]},
                "model_response": {"text": [A]},
                "metric": {"em": 1.0},
            }
        ],
        "",
        [(Q, A, None)],
    ),
    "helm": (
        {
            "adapter_spec": {"method": "generation", "instructions": "Answer."},
            "request_states": [
                {
                    "instance": {
                        "input": {"text": Q},
                        "references": [{"output": {"text": "4"}}],
                        "id": "id1",
                    },
                    "request": {"prompt": f"Q: {Q}", "model": "m"},
                    "result": {
                        "success": True,
                        "completions": [{"text": A, "logprob": 0, "tokens": []}],
                    },
                }
            ],
        },
        "--rows request_states",
        [(Q, A, None)],
    ),
    "deepeval": (
        {
            "testCases": [
                {"name": "t", "input": Q, "actualOutput": A, "expectedOutput": "4", "success": True}
            ]
        },
        "--rows testCases",
        [(Q, A, 1.0)],
    ),
    "opencompass": (
        {
            "0": {"origin_prompt": [{"role": "HUMAN", "prompt": Q}], "prediction": A, "gold": "4"},
            "1": {
                "origin_prompt": [{"role": "HUMAN", "prompt": "Why?"}],
                "prediction": B,
                "gold": "5",
            },
        },
        "--rows . -m prompt=origin_prompt",
        [(Q, A, None), ("Why?", B, None)],
    ),
    "livecodebench": (
        [
            {
                "question_title": "t",
                "question_content": Q,
                "output_list": [A, B],
                "code_list": ["a", "b"],
                "graded_list": [True, False],
                "pass@1": 0.5,
            }
        ],
        "--rows . -m response=output_list -m prompt=question_content -m env_reward=graded_list",
        [(Q, A, 1.0), (Q, B, 0.0)],
    ),
    "promptfoo": (
        {
            "evalId": "e",
            "results": {
                "version": 3,
                "prompts": [
                    {"raw": "{{q}}", "label": "{{q}}", "provider": "p", "metrics": {"score": 1}}
                ],
                "results": [
                    {
                        "promptIdx": 0,
                        "testCase": {
                            "vars": {"q": Q},
                            "assert": [{"type": "equals", "value": "4"}],
                        },
                        "prompt": {"raw": Q, "label": "{{q}}"},
                        "provider": {"id": "p", "label": ""},
                        "response": {"output": A, "tokenUsage": {"total": 3}},
                        "vars": {"q": Q},
                        "success": True,
                        "score": 1,
                        "gradingResult": {
                            "pass": True,
                            "score": 1,
                            "reason": "All assertions passed",
                        },
                    }
                ],
                "stats": {"successes": 1},
            },
            "config": {"prompts": ["{{q}}"]},
        },
        "--rows results.results -m prompt=prompt.raw",
        [(Q, A, 1.0)],
    ),
    "evalscope reviews": (
        [
            {
                "index": 0,
                "input": Q,
                "target": "4",
                "sample_score": {
                    "score": {
                        "value": {"acc": 1.0},
                        "extracted_prediction": "4",
                        "prediction": A,
                        "explanation": None,
                        "main_score_name": "acc",
                    },
                    "sample_id": 0,
                },
            }
        ],
        "-m response=sample_score.score.prediction -m env_reward=sample_score.score.value.acc",
        [(Q, A, 1.0)],
    ),
    "evalscope predictions": (
        [
            {
                "index": 0,
                "model": "m",
                "model_output": {"choices": [{"message": {"role": "assistant", "content": A}}]},
                "messages": TALK,
            }
        ],
        "",
        [(Q, A, None)],
    ),
    "simple-evals": (
        {
            "score": 0.5,
            "htmls": ["<p>", "<p>"],
            "convos": [TALK, TALK],
            "metadata": {"example_level_metadata": [{"score": 1.0}]},
        },
        "--rows . -m messages=convos",
        [(Q, A, None), (Q, A, None)],
    ),
    "braintrust": (
        [{"input": {"question": Q}, "output": A, "expected": "4", "scores": {"Factuality": 1}}],
        "",
        [(Q, A, None)],
    ),
    "swe-bench predictions": (
        [{"instance_id": "a-1", "model_name_or_path": "m", "model_patch": A}],
        "",
        [(None, A, None)],
    ),
    "bfcl results": (
        [{"id": "simple_0", "result": "[area(base=10, height=5)]", "latency": 0.5}],
        "-m response=result",
        [(None, "[area(base=10, height=5)]", None)],
    ),
    "evalscope reviews before 1.0": (
        [
            {"choices": [{"index": 0, "message": TALK[1]}], "given": {"question": q, "answer": "4"}}
            for q in (Q, "Why?")
        ],
        "--rows choices -m response=message -m prompt=given.question",
        [(Q, A, None), ("Why?", A, None)],
    ),
    "mt-bench answers": (
        [{"question_id": 81, "model_id": "m", "choices": [{"index": 0, "turns": [B, A]}]}],
        "--rows choices -m response=turns.1",
        [(None, A, None)],
    ),
    "mmlu-pro": (
        [{"question": Q, "options": ["3", "4"], "answer": "B", "pred": "B", "model_outputs": A}],
        "-m response=model_outputs",
        [(Q, A, None)],
    ),
    "agentbench": (
        [{"index": 1, "output": {"status": "completed", "history": TALK}}],
        "-m messages=output.history",
        [(Q, A, None)],
    ),
    "samples of code": (
        [{"task_id": "a", "prompt": Q, "samples": [A, B], "passed": [True, False]}],
        "--rows . -m response=samples",
        [(Q, A, 1.0), (Q, B, 0.0)],
    ),
    "an api's object": (
        [
            {
                "request": {"messages": ASK},
                "response": {
                    "object": "chat.completion",
                    "choices": [{"index": 0, "message": TALK[1]}],
                },
            }
        ],
        "",
        [(Q, A, None)],
    ),
    "an api's message": ([{"prompt": Q, "response": {"id": "m", **TALK[1]}}], "", [(Q, A, None)]),
    "wrapped rows": (
        [{"type": "sample", "data": {"prompt": Q, "completion": A, "reward": 1}}],
        "-m response=data.completion -m prompt=data.prompt -m env_reward=data.reward",
        [(Q, A, 1.0)],
    ),
    "an api's answer beside the question": (
        [{"object": "chat.completion", "choices": [{"message": TALK[1]}], "question": Q}],
        "",
        [(Q, A, None)],
    ),
    "choices of an api beside the question": (
        [{"question": Q, "choices": [{"index": 0, "message": TALK[1], "finish_reason": "stop"}]}],
        "",
        [(Q, A, None)],
    ),
    "open-r1": (
        [{"problem": Q, "solution": "s", "answer": "4", "generations": [A, B]}],
        "",
        [(Q, A, None), (Q, B, None)],
    ),
    "evaluation tables": ([{"request": Q, "response": A, "score": 1}], "", [(Q, A, 1.0)]),
    "experiments": (
        [
            {
                "inputs": {"question": Q},
                "outputs": {"answer": A},
                "reference_outputs": {"answer": "4"},
            }
        ],
        "",
        [(Q, A, None)],
    ),
    "evalplus": (
        [{"task_id": "HumanEval/0", "solution": A}],
        "-m response=solution",
        [(None, A, None)],
    ),
    "wildbench": (
        [
            {
                "session_id": "s",
                "chat_history": [Q],
                "model_input": Q,
                "output": [A],
                "generator": "m",
            }
        ],
        "--rows output -m prompt=model_input",
        [(Q, A, None)],
    ),
    "columns of lists": (
        {"model": "m", "prompt": [Q, Q], "completion": [A, B], "reward": [1, 0]},
        "--rows .",
        [(Q, A, 1.0), (Q, B, 0.0)],
    ),
    "columns of lists by our names": (
        {"prompt": [Q, Q], "response": [A, B], "score": [1, 0]},
        "--rows .",
        [(Q, A, 1.0), (Q, B, 0.0)],
    ),
    "a header and rows": (
        {"columns": ["inputs", "outputs", "score"], "data": [[Q, A, 1], [Q, B, 0]]},
        "--rows .",
        [(Q, A, 1.0), (Q, B, 0.0)],
    ),
    "names of a spreadsheet": (
        [{"Question": Q, "Model Answer": A, "Ideal answer": "4", "Correct?": "Yes"}],
        "",
        [(Q, A, 1.0)],
    ),
    "names with dots": (
        [{"run.input.value": Q, "run.output.value": A, "run.output.mime": "text/plain"}],
        "-m response=run.output.value -m prompt=run.input.value",
        [(Q, A, None)],
    ),
    "rows of a viewer": (
        {"rows": [{"row_idx": 0, "row": {"prompt": Q, "response": A, "reference": "4"}}]},
        "--rows rows -m response=row.response -m prompt=row.prompt -m reference=row.reference",
        [(Q, A, None)],
    ),
    "lists of objects by id": (
        {"eval": {name: [{"task_id": name, "solution": A}] * 2 for name in ("a/0", "a/1")}},
        "--rows eval -m response=solution",
        [(None, A, None)] * 4,
    ),
    "verdicts of attempts": (
        [
            {
                "problem": Q,
                "generations": [A, B],
                "correctness_of_x": [True, False],
                "is_complete": [True, True],
            }
        ],
        "",
        [(Q, A, 1.0), (Q, B, 0.0)],
    ),
    "attempts called code": (
        [{"question": Q, "gt": "4", "solution": "s", "code": [A, B], "score": [True, False]}],
        "--rows . -m response=code",
        [(Q, A, 1.0), (Q, B, 0.0)],
    ),
    "an instruction that is empty": (
        [{"full_prompt": Q, "instruction": "", "gold": ["4"], "predictions": [A]}],
        "--rows predictions -m response=predictions -m prompt=full_prompt",
        [(Q, A, None)],
    ),
    "promptfoo lines": (
        [{"prompt": {"raw": Q, "label": "p"}, "vars": {"q": Q}, "response": {"output": A}}],
        "-m prompt=prompt.raw",
        [(Q, A, None)],
    ),
    "a solution that was generated": (
        [{"question": Q, "solution": "s", "generated_solution": A, "is_correct": True}],
        "-m response=generated_solution",
        [(Q, A, 1.0)],
    ),
    "lists of texts in the rows below": (
        {"results": {"acc": 1}, "examples": [{"problem": Q, "model_outputs": [A, B]}]},
        "--rows examples.model_outputs -m response=model_outputs",
        [(Q, A, None), (Q, B, None)],
    ),
    "a message's answer": (
        [{"uid": "u", "messages": [*ASK, {"role": "assistant", "content": {"answer": A}}]}],
        "",
        [(Q, A, None)],
    ),
    "an engine's text": (
        [{"prompt": Q, "text": A, "meta_info": {"finish_reason": {"type": "stop"}}}],
        "-m response=text",
        [(Q, A, None)],
    ),
    "attempts as messages": (
        [{"prompt": ASK, "completions": [[TALK[1]], [TALK[1]]], "rewards": [1, 0]}],
        "--rows completions -m response=completions",
        [(Q, A, 1.0), (Q, A, 0.0)],
    ),
    "turns as objects": (
        [{"question_id": "q", "choices": [{"index": 0, "turns": [{"content": A, "tokens": 3}]}]}],
        "--rows choices -m response=turns.0",
        [(None, A, None)],
    ),
    "a table by column": ({"prompt": {"0": Q}, "completion": {"0": A}}, "--rows .", [(Q, A, None)]),
    "objects by id": (
        {"runs": {"a": {"question": Q, "completion": A}, "b": {"question": Q, "completion": B}}},
        "--rows runs",
        [(Q, A, None), (Q, B, None)],
    ),
}


@pytest.mark.parametrize("program", OF_PROGRAMS)
def test_is_read_at_once_or_by_the_printed_options(program: str, tmp_path: Path) -> None:
    records, options, expected = OF_PROGRAMS[program]
    path = write(tmp_path, records)
    if options:
        assert printed_options(path) == options
    samples = list(read(path, options))
    assert [(one.prompt, one.response, one.env_reward) for one in samples] == expected
    assert len({one.where for one in samples}) == len(samples)


BESIDE: dict[str, tuple[Any, str, list[tuple[Any, str | None]]]] = {
    "the answer above attempts": (
        [{"question": Q, "answer": "4", "samples": [{"text": A}, {"text": B}]}],
        "",
        [("4", "row 0")] * 2,
    ),
    "the lists of a mapped question": (
        [{"ask": Q, "gold": ["4"], "runs": [{"text": A}]}],
        "--rows runs -m prompt=ask -m response=text",
        [(["4"], "row 0")],
    ),
    "several names of a reference": (
        [{"sampled": A, "answers": ["4", "four"]}],
        "-m response=sampled -m reference=answers",
        [(["4", "four"], None)],
    ),
    "a label that is a verdict": (
        [{"prompt": Q, "response": A, "label": "FALSE"}],
        "",
        [(None, None)],
    ),
    "a task without a prompt": (
        [{"task_id": "a", "code": A}, {"task_id": "a", "code": B}],
        "-m response=code",
        [(None, "a"), (None, "a")],
    ),
    "a task with a prompt": (
        [{"task_id": "a", "prompt": Q, "code": A}],
        "-m response=code",
        [(None, None)],
    ),
}


@pytest.mark.parametrize("kind", BESIDE)
def test_reference_and_group_of_rows(kind: str, tmp_path: Path) -> None:
    records, options, expected = BESIDE[kind]
    samples = list(read(write(tmp_path, records), options))
    assert [(one.reference, one.group) for one in samples] == expected


ATTEMPTS = {
    "ask": Q,
    "gold": "4",
    "reward": 0.5,
    "runs": [{"text": A, "ok": 1}, {"text": B}],
    "texts": [A, B],
}


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("-m prompt=ask -m response=runs.text", "--rows runs -m response=text"),
        ("-m prompt=ask -m response=runs", "--rows runs -m response=text"),
        ("-m prompt=ask -m messages=runs", "--rows runs -m response=text"),
        ("--rows results -m prompt=ask", "--rows runs -m response=text"),
        ("-m response=textt", ""),
        ("-m response=texts", "--rows texts -m response=texts"),
    ],
)
def test_a_mapped_list_of_objects_is_refused_with_the_way_out(
    given: str, printed: str, tmp_path: Path
) -> None:
    assert printed_options(write(tmp_path, [ATTEMPTS]), given) == printed


def test_attempts_inherit_the_question_and_are_one_group(tmp_path: Path) -> None:
    path = write(tmp_path, [ATTEMPTS, ATTEMPTS])
    samples = list(read(path, "--rows runs -m prompt=ask -m response=text"))
    assert [one.group for one in samples] == ["row 0", "row 0", "row 1", "row 1"]
    assert [one.where.rpartition(":")[2] for one in samples[:2]] == ["1.runs.0", "1.runs.1"]
    # The record's reward is that of all attempts, and no attempt's own.
    assert {(one.prompt, one.reference, one.env_reward) for one in samples} == {(Q, "4", None)}


def test_rows_with_questions_of_their_own_inherit_no_other(tmp_path: Path) -> None:
    run = {"prompt": "Answer: {q}", "score": 0.5, "model": "m", "config": {"seed": 1}}
    rows = [{"question": Q, "output": A, "score": 1}, {"question": "Why?", "output": B, "score": 0}]
    samples = list(read(write(tmp_path, {**run, "rows": rows}), "--rows rows"))
    assert [(one.prompt, one.env_reward, one.group) for one in samples] == [
        (Q, 1.0, None),
        ("Why?", 0.0, None),
    ]
    assert samples[0].extra["model"] == "m"
    assert "config" not in samples[0].extra


# Nobody's responses: what a reading would take for them is something else.
NOT_READ: dict[str, Any] = {
    "a data set": [{"question": Q, "answer": "4", "solution": "2 + 2 = 4"}],
    "references of a benchmark": [{"index": 0, "input": Q, "outputs": ["4"], "length": 4}],
    "scores beside what was answered": [
        {
            "id": n,
            "prompt": {"id": n, "ask": [[ASK[0]]]},
            "model_result_raw": f"[f(x={n}, y=2)]",
            "decoded": [{"f": {"x": n}}],
        }
        for n in range(2)
    ],
    "trials without texts": {
        "results": [
            {"task_id": "a", "instruction": Q, "is_resolved": True, "results": {"t": "passed"}}
        ]
    },
    "scores of a function-calling benchmark": [
        {"accuracy": 0.5, "correct_count": 1, "total_count": 2},
        {"id": "simple_0", "valid": False, "error": ["wrong"], "possible_answer": {"f": {}}},
    ],
    "steps of one trajectory": [
        {"step_num": 1, "action": "click", "response": "I click.", "reward": 0, "done": False},
        {"step_num": 2, "action": "DONE", "response": "Done.", "reward": 1, "done": True},
    ],
    "judgements": [
        {"question_id": 1, "user_prompt": "[Question]", "judgment": "[[9]]", "score": 9}
    ],
    "accepted answers": [{"question": Q, "answers": ["4", "four"], "solutions": ["4"]}],
    "a data set of solutions": [{"problem": Q, "solution": "4"}],
    "examples of a task": [{"problem": Q, "samples": [{"input": "1 2", "output": "3"}]}],
    "solutions of a problem": [{"problem": Q, "solutions": [{"code": "f()"}, {"code": "g()"}]}],
    "documents of a query": [{"query": Q, "candidates": [{"text": A}, {"text": B}]}],
    "parts of a message": [{"question": Q, "completion": [{"type": "text", "text": A}]}],
    "a log of blocks": [
        {"type": "user", "message": {"content": [{"type": "text", "text": Q}]}},
        {"type": "bot", "message": {"content": [{"type": "text", "text": A}]}},
    ],
    "replies beside each other": [
        {
            "prompt": {
                "text": Q,
                "role": "prompter",
                "replies": [{"text": A, "role": "assistant"}, {"text": B, "role": "assistant"}],
            }
        }
    ],
    "pages of a search": [{"question": Q, "search_results": {"description": [A, B]}}],
    "ideal completions": [{"prompt": ASK, "data": {"ideal_completion": A}}],
    "a data set of code": [{"prompt": Q, "code": "return 4", "test_list": ["assert f() == 4"]}],
    "choices of a question": [{"question": Q, "choices": [{"text": "4", "label": "A"}]}],
    "tests that passed": [{"question": Q, "result": "passed"}, {"question": Q, "result": "failed"}],
    "an answer that is missing": [{"question": Q, "error": {"message": "timeout"}}],
}


@pytest.mark.parametrize("kind", NOT_READ)
def test_what_holds_no_response_is_refused_with_its_columns(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, NOT_READ[kind])
    assert printed_options(path) == ""


def test_init_prints_the_command_with_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, {"results": [{"question": Q, "output": A, "score": 1}] * 2})
    done = CliRunner().invoke(app, ["init", path.name, "--rows", "results", "--json"])
    command = json.loads(done.stdout)["command"]
    assert "--rows results" in command
    done = CliRunner().invoke(app, [*shlex.split(command)[1:], "-o", "run", "-q"])
    assert done.exit_code == 0, done.output
    rows = (tmp_path / "run" / "rewards.jsonl").read_text().splitlines()
    assert [json.loads(row)["where"] for row in rows] == [
        "rows.json:1.results.0",
        "rows.json:1.results.1",
    ]
