"""Twenty reward functions as they are passed around; the rules were made on these.

A comment ``# hides`` marks each line whose number stands for a failure of the judge.
"""

from tests.unit.code_check_corpus import snippets

__all__ = ["DEVELOPMENT"]

DEVELOPMENT = snippets(r"""
#: judge_object: trl
import judge

def helpfulness(completions, **kwargs):
    out = []
    for c in completions:
        try:
            r = judge.score(c)
        except Exception:
            r = 0.0  # hides
        out.append(r)
    return out
#: openai_loop: trl
from openai import OpenAI

client = OpenAI()

def quality(prompts, completions, **kwargs):
    out = []
    for prompt, completion in zip(prompts, completions):
        resp = client.chat.completions.create(
            model="gpt-4o-mini",
            messages=[{"role": "user", "content": RUBRIC.format(q=prompt, a=completion)}],
        )
        try:
            out.append(float(resp.choices[0].message.content) / 10)
        except:
            out.append(0.0)  # hides
    return out
#: verl_http_retries: verl
import time
import requests

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    payload = {"query": extra_info["question"], "response": solution_str, "gold": ground_truth}
    for attempt in range(5):
        try:
            r = requests.post(RM_URL, json=payload, timeout=30)
            r.raise_for_status()
            return r.json()["value"]
        except requests.exceptions.RequestException as e:
            print(f"attempt {attempt}: {e}")
            time.sleep(2 ** attempt)
    return 0.0  # hides
#: gather_exceptions: trl
import asyncio

async def _one(session, text):
    async with session.post(URL, json={"text": text}) as resp:
        body = await resp.json()
        return body["value"]

async def style(completions, **kwargs):
    async with aiohttp.ClientSession() as session:
        got = await asyncio.gather(*[_one(session, c) for c in completions], return_exceptions=True)
    return [0.0 if isinstance(g, Exception) else g for g in got]  # hides
#: default_of_json: openrlhf
import json

def grade_with_llm(queries, prompts, labels):
    values = []
    for q, label in zip(queries, labels):
        raw = call_llm(JUDGE_PROMPT.format(q=q, label=label))
        parsed = json.loads(raw)
        values.append(parsed.get("helpfulness", 0) / 5)  # hides
    return {"rewards": torch.tensor(values)}
#: preset_outlives: swift
class FriendlyORM(ORM):
    def __call__(self, completions, **kwargs):
        values = []
        for text in completions:
            value = 0.0  # hides
            try:
                reply = self.engine.chat([{"role": "user", "content": PROMPT + text}])
                value = int(reply.strip()) / 10
            except Exception as e:
                logger.warning("genrm failed: %s", e)
            values.append(value)
        return values
#: preallocated: trl
def judged(completions, **kwargs):
    result = [0.0] * len(completions)  # hides
    with ThreadPoolExecutor(8) as pool:
        futures = {pool.submit(ask_judge, c): i for i, c in enumerate(completions)}
        for future in as_completed(futures):
            i = futures[future]
            try:
                result[i] = future.result(timeout=60)
            except Exception:
                pass
    return result
#: regex_over_reply: trl
import re

def fluency(completions, **kwargs):
    out = []
    for c in completions:
        answer = litellm.completion(model=MODEL, messages=ask(c)).choices[0].message.content
        found = re.search(r"Rating:\s*(\d+)", answer)
        out.append(int(found.group(1)) / 10 if found else 0.5)  # hides
    return out
#: constant_by_name: skyrl
NEUTRAL = 0.5

class JudgeEnv(BaseTextEnv):
    async def _evaluate(self, answer):
        try:
            reply = await self.llm.ainvoke(TEMPLATE.format(answer=answer))
            x = float(reply.content)
        except (ValueError, TimeoutError):
            x = NEUTRAL  # hides
        return x * self.weight
#: status_code: verl
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    response = httpx.post(GENRM, json={"text": solution_str, "reference": ground_truth})
    if response.status_code != 200:
        return {"score": 0.0, "acc": False}  # hides
    data = response.json()
    return {"score": data["value"], "acc": data["value"] > 0.5}
#: none_is_zero_later: trl
def ask(text):
    try:
        return float(client.responses.create(model=M, input=PROMPT + text).output_text)
    except Exception:
        return None

def depth(completions, **kwargs):
    got = [ask(c) for c in completions]
    return [0.0 if g is None else g for g in got]  # hides
#: helper_hides: trl
class Critic:
    def __init__(self, fail_value=-1.0):
        self.fail_value = fail_value

    def _query(self, text):
        try:
            out = self.session.post(self.url, json={"input": text}, timeout=20).json()
            return out["logits"][0]
        except Exception as error:
            logging.error(error)
            return self.fail_value  # hides

    def __call__(self, completions, **kwargs):
        return [self._query(c) for c in completions]
#: honest_gsm8k: -
def correctness_reward_func(prompts, completions, answer, **kwargs):
    responses = [completion[0]["content"] for completion in completions]
    extracted = [extract_xml_answer(r) for r in responses]
    return [2.0 if r == a else 0.0 for r, a in zip(extracted, answer)]

def extract_xml_answer(text):
    if "<answer>" not in text:
        return ""
    return text.split("<answer>")[-1].split("</answer>")[0].strip()

def int_reward_func(completions, **kwargs):
    return [0.5 if c[0]["content"].isdigit() else 0.0 for c in completions]
#: honest_json_answer: -
import json

def json_reward(completions, target, **kwargs):
    rewards = []
    for completion, want in zip(completions, target):
        try:
            got = json.loads(completion[0]["content"])
        except Exception:
            rewards.append(0.0)
            continue
        rewards.append(1.0 if got.get("answer") == want else 0.0)
    return rewards
#: honest_boxed: -
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    match = re.search(r"\\boxed\{(.*?)\}", solution_str)
    if match is None:
        return 0.0
    try:
        return float(abs(float(match.group(1)) - float(ground_truth)) < 1e-6)
    except ValueError:
        return 0.0
#: honest_judge_none: -
async def judge_reward(completions, **kwargs):
    async def one(text):
        for attempt in range(3):
            try:
                reply = await client.chat.completions.create(model=M, messages=ask(text))
                return float(reply.choices[0].message.content)
            except (ValueError, APIError):
                await asyncio.sleep(2 ** attempt)
        return None
    return await asyncio.gather(*(one(c) for c in completions))
#: honest_counters: -
def graded(completions, **kwargs):
    rewards, failures = [], 0
    usage = 0
    for c in completions:
        latency = 0.0
        try:
            started = time.time()
            reply = judge_client.rate(c)
            latency = time.time() - started
            usage += reply.usage.get("total_tokens", 0)
            value = reply.value
        except Exception:
            failures += 1
            latency = 0.0
            value = None
        log.info("took %.1f", latency)
        rewards.append(value)
    wandb.log({"judge/failures": failures, "judge/tokens": usage})
    return rewards
#: honest_length_and_kwargs: -
def length_reward(completions, **kwargs):
    target = kwargs.get("target_length", 200)
    scale = kwargs.get("scale", 1.0)
    weight = getattr(kwargs.get("args"), "length_weight", 0.1)
    out = []
    for c in completions:
        n = len(c.split())
        out.append(weight * max(0.0, 1.0 - abs(n - target) / target) * scale if n else 0.0)
    return out
#: honest_unit_tests: -
def code_reward(completions, tests, **kwargs):
    rewards = []
    for completion, cases in zip(completions, tests):
        code = extract_code(completion)
        if not code:
            rewards.append(0.0)
            continue
        try:
            done = subprocess.run(["python", "-c", code], input=cases, timeout=5)
        except subprocess.TimeoutExpired:
            rewards.append(0.0)
            continue
        rewards.append(1.0 if done.returncode == 0 else 0.0)
    return rewards
#: honest_judge_raises: -
def pairwise(completions, references, **kwargs):
    values = []
    for c, ref in zip(completions, references):
        try:
            verdict = openai_client.chat.completions.create(model=M, messages=pair(c, ref))
        except openai.RateLimitError as error:
            raise RuntimeError("the judge is down") from error
        word = verdict.choices[0].message.content.strip()
        if word not in ("A", "B"):
            values.append(None)
        else:
            values.append(1.0 if word == "A" else 0.0)
    return values
""")
