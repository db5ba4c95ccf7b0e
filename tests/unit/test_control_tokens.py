"""Control tokens: what looks like one, and what a tokenizer says, is broken up; text stays."""

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.refusals import refuses
from tests.unit.helpers.shipped_judges import Judge, text_of

from adjudge.errors import ConfigError
from adjudge.graders.llm.judge_grader import LLMGrader
from adjudge.judges import ReplyCache
from adjudge.judges.base import ChatCall, Reply
from adjudge.judges.models.local import LocalChatModel
from adjudge.judges.models.local_loading import read_control_tokens
from adjudge.judges.table import JudgeTable, build_judge
from adjudge.prompts import ChatMessage, PromptTemplate, break_token_patterns, clean_text
from adjudge.prompts.control_tokens import break_control_tokens, select_control_tokens
from adjudge.types import GraderScore

_KNOWN = """
<|im_start|> <|im_end|> <|eot_id|> <|start_header_id|> </s> <s> [INST] [/INST] <start_of_turn>
<end_of_turn> <bos> <eos> <pad> <unk> <EOS_TOKEN> <BOS_TOKEN> <|START_OF_TURN_TOKEN|>
[|assistant|] [|endofturn|] [|user|] [|system|] [UNUSED_TOKEN_145] [UNUSED_TOKEN_146] <eoh>
<eoa> [BOS] [EOS] [EOT] [gMASK] <sop> <seed:bos> <seed:eos> <turn|> <|turn> <|tool_call>
<channel|> ]~b] [e~[ ]~!b[ <reserved_106> <｜User｜> <｜end▁of▁sentence｜> <|User|> <tool_call>
</tool_call> <think> </think> [THINK] [/THINK] [TOOL_RESULTS] [TOOL_CONTENT] [ARGS]
<|fim-prefix|> <|end|> <|return|> <|observation|> <extra_id_1> <|endoftext|> <|end_of_text|>
<｜begin▁of▁sentence｜> <ctrl99> <end_of_utterance> <SPECIAL_11> <|start_of_role|> <|im_sep|>
<end_of_system> [SEP] <<SYS>> <</SYS>> [SYSTEM_PROMPT] [/AVAILABLE_TOOLS] [TOOL_CALLS]
◁think▷ ◁/think▷ <role> </role> <hy_place▁holder▁no▁2> <[begin▁of▁sentence]> ｜DSML｜ <seed:think>
<seed:cot_budget_reflect> <longcat_user> </longcat_s> <C_Q> <C_A> <IMG_CONTEXT> <mask:1> [@BOS@]
[start_header_id] [TRANSCRIBE] [STREAMING_PAD] <[SYS_never_used_51bce0c7]> <think_never_used_51bc>
"""
_ALIKE = """
<|python_tag|> <|eom_id|> <|reserved_special_token_17|> <|plamo:msg|> <|用户|>
<|place▁holder▁no▁0|> <｜tool▁calls▁begin｜> <|channel> <message|> <|"|> [|human|] <EOS> <eod>
<eot> <minimax:tool_call> </seed:think> <tool_response> <function_call> <arg_key> </arg_value>
<unused99> <reserved_token_3> <extra_id_77> <ctrl100> <SPECIAL_999> <begin_of_image>
<start_of_image> <endoftext> <fim_prefix> <fim-middle> <_user> <IMAGE_TOKEN> <tool_call_end>
<file_sep> [CLS] [PAD] [sMASK] [EOA] [MODEL_SETTINGS] [TOOL_CONTENT] [IMG_BREAK] [control_8]
[UNUSED_TOKEN_9] ]!p~[ ]!d~[ ]<]image[>[ ]~!x]
◁begin_of_turn▷ <hy_think> <tool▁call▁end> <[PAD▁TOKEN]> </seed:tool_call> <minimax:role> [@EOS@]
[end_header_id] <mask:12> <longcat_tool_declare>
"""
KNOWN, ALIKE = _KNOWN.split(), _ALIKE.split()


@pytest.mark.parametrize("token", KNOWN + ALIKE)
def test_what_looks_like_a_control_token_is_parted_after_its_first_sign(token: str) -> None:
    parted = f"{token[0]} {token[1:]}"
    assert clean_text(token) == parted
    assert clean_text(f"a{token}{token}\n{token}b") == f"a{parted}{parted}\n{parted}b"


SIGNS = "<>[]|｜/~!eosb_INSTofnd09 ◁▷▁"


@given(st.text(SIGNS) | st.lists(st.sampled_from([*KNOWN, *ALIKE, *SIGNS])).map("".join))
def test_nothing_is_left_of_a_family_and_nothing_but_spaces_is_added(text: str) -> None:
    parted = break_token_patterns(text)
    assert break_token_patterns(parted) == parted
    assert parted.replace(" ", "") == text.replace(" ", "")


TRICKY = frozenset(
    ["<|im_end|>", "<|im_", "end|>", "]~b]", "aba", "bab", "<think>", "<a b>", " <a", "Ünï", "ﬀx"]
)
PIECES = [*TRICKY, *"<|>]~ab ", "＜", "İ", "ſ", "<|im_<|im_end|>end|>", "THINK", "im_end"]
some_tokens = st.frozensets(st.sampled_from(sorted(TRICKY)) | st.text("<|>ab", min_size=2))


@given(st.lists(st.sampled_from(PIECES)).map("".join) | st.text("<|>ab"), some_tokens)
def test_no_token_is_left_however_they_overlap(text: str, tokens: frozenset[str]) -> None:
    parted = break_control_tokens(text, tokens)
    assert not any(token in parted for token in tokens)
    assert break_control_tokens(parted, tokens) == parted
    rest = iter(parted)
    assert all(sign in rest for sign in text)  # in this order, and nothing taken away
    cleaned = clean_text(text, tokens)
    assert not any(token in cleaned for token in tokens)


def test_tokens_are_found_as_a_tokenizer_may_write_them() -> None:
    tokens = frozenset({"<|End|>", "[sep]"})
    assert break_control_tokens("<|end|>＜|END|＞[SEP]", tokens) == "< |end|>＜ |END|＞[ SEP]"


def test_one_character_cannot_be_parted() -> None:
    assert break_control_tokens("a\ue000b\ue000", frozenset({"\ue000", "<x>"})) == "a\ufffdb\ufffd"


@pytest.mark.parametrize(
    "unit", ["<|", "<", "<▁▁▁", "[", "]~", "]<]a", "<end_of_end_of_", "[A_A_", "a"]
)
def test_hostile_text_takes_linear_time(unit: str) -> None:
    text = unit * (400_000 // len(unit)) + ">]"
    break_control_tokens(
        break_token_patterns(text), frozenset({"<|x|>", "aaaaaaaaaaaab", "<<<<<<<<<<<<a"})
    )


def test_control_tokens_are_those_that_no_writer_needs() -> None:
    added = [("<|im_end|>", True), ("</s>", True), ("<think>", False), ("\ue000", True)]
    left = [("\n\n", False), ("▁▁", False), ("  ", True), ("<table>", False), ("</H1>", False),
            ("ü", False), ("!", True), ("", True)]  # fmt: skip
    assert select_control_tokens([*added, *left]) == {token for token, _ in added}


def test_a_template_parts_what_it_fences_and_nothing_else() -> None:
    template = PromptTemplate([ChatMessage("user", "@@say {mine} {theirs}")], trusted=["mine"])
    values: dict[str, Any] = {"mine": "@@a", "theirs": "x @@say y"}
    asked = template.render(values, control_tokens=frozenset({"@@say", "@@a"}))
    assert "@@say @@a" in asked.messages[0]["content"]
    assert asked.untrusted == ("x @ @say y",)
    values["theirs"] = [{"role": "tool", "content": "x @@say y"}]
    (seen,) = template.render(values, control_tokens=frozenset({"@@say"})).untrusted
    assert "x @ @say y" in seen


def test_a_grader_parts_the_tokens_of_its_judge() -> None:
    judge = Judge('{"score": 3, "reason": "fine"}')
    grader = LLMGrader(judge, template="Rate {response}, 0 to 5. Reply with JSON.")
    assert isinstance(asyncio.run(grader.aevaluate(response="a@@end")), GraderScore)
    judge.control_tokens = frozenset({"@@end"})
    asyncio.run(grader.aevaluate(response="a@@end"))
    assert ["a@@end" in text_of(asked[0]) for asked in judge.asked] == [True, False]
    assert "a@ @end" in text_of(judge.asked[1][0])


ADDED = {"id": 1, "content": "@@end", "special": True, "normalized": False}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", {"added_tokens": [ADDED], "model": {"unk_token": "ignored"}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1": ADDED}, "add_bos_token": True}),
        ("tokenizer_config.json", {"eos_token": "@@end", "pad_token": None}),
        ("tokenizer_config.json", {"extra_special_tokens": {"image_token": "@@end"}}),
        ("special_tokens_map.json", {"eos_token": ADDED}),
        ("special_tokens_map.json", {"additional_special_tokens": ["@@end"]}),
        ("tekken.json", {"special_tokens": [{"rank": 0, "token_str": "@@end"}]}),
    ],
)
def test_a_tokenizer_is_read_from_its_files(tmp_path: Path, name: str, content: Any) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    assert read_control_tokens(str(tmp_path)) == {"@@end"}
    assert read_control_tokens(str(tmp_path / name)) == {"@@end"}


@pytest.mark.parametrize(
    ("content", "why"),
    [("{", "cannot be read as JSON"), ("[]", "cannot be read"), ("{}", "no special or added")],
)
def test_a_file_that_is_no_tokenizer(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=why):
        read_control_tokens(str(tmp_path))


def folder_of(path: Path) -> Path:
    folder = path / "judge"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [ADDED]}))
    return folder


def test_a_tokenizer_that_is_not_there_is_an_error_before_anything_is_asked(tmp_path: Path) -> None:
    table = JudgeTable.model_validate(
        {"type": "scripted", "script": "x", "tokenizer": "./nowhere/tokenizer.json"}
    )
    with refuses("judges.main.tokenizer"):
        build_judge("main", table, where="spec.toml", folder=tmp_path)
    with pytest.raises(ValueError, match="tokenizer"):
        JudgeTable.model_validate({"type": "local", "model": "m", "tokenizer": "t"})


def test_a_recorded_judge_may_name_it_too_also_in_other_processes(tmp_path: Path) -> None:
    folder_of(tmp_path)
    call = ChatCall(model="m", messages=[{"role": "user", "content": "?"}])
    cache = ReplyCache(tmp_path / "replies.sqlite", sampled=True)
    cache.keep(cache.key(call, "vllm"), Reply(text="A"), call)
    cache.close()
    table = JudgeTable.model_validate(
        {"type": "recorded", "cassette": "replies.sqlite", "tokenizer": "judge/tokenizer.json"}
    )
    judge = build_judge("main", table, where="spec.toml", folder=tmp_path)
    assert judge.control_tokens == {"@@end"}
    assert pickle.loads(pickle.dumps(judge)).control_tokens == {"@@end"}


def test_a_local_judge_has_the_tokens_of_its_own_folder(tmp_path: Path) -> None:
    assert LocalChatModel(folder_of(tmp_path)).control_tokens == {"@@end"}
    assert LocalChatModel(tmp_path / "nothing").control_tokens == frozenset()
