"""Twenty more reward functions, which were not looked at while the rules were made.

A comment ``# hides`` marks each line whose number stands for a failure of the judge.
"""

from tests.unit.code_check_corpus import snippets

__all__ = ["HELD_OUT"]

HELD_OUT = snippets(r"""
#: anthropic_json: trl
import anthropic
import json

anthropic_client = anthropic.Anthropic()

def tone(completions, **kwargs):
    points = []
    for text in completions:
        p = -1.0  # hides
        try:
            msg = anthropic_client.messages.create(
                model="claude", max_tokens=64, messages=[{"role": "user", "content": T + text}]
            )
            body = json.loads(msg.content[0].text)
            p = body["tone"] / 5
        except json.JSONDecodeError:
            print("bad json")
        except anthropic.APIError as e:
            print(e)
        points.append(p)
    return points
#: reward_model_pipeline: trl
from transformers import pipeline

rm = pipeline("text-classification", model="reward-model")

def preference(completions, **kwargs):
    texts = [c[0]["content"] for c in completions]
    try:
        outputs = rm(texts, batch_size=8)
        return [o["score"] for o in outputs]
    except RuntimeError as e:
        print(f"OOM? {e}")
        return [0.0 for _ in texts]  # hides
#: async_swift: swift
class AsyncGenRM(AsyncORM):
    async def _call(self, session, text):
        for i in range(self.max_retries):
            try:
                async with session.post(self.url, json=self.body(text)) as resp:
                    if resp.status == 429:
                        await asyncio.sleep(2 ** i)
                        continue
                    data = await resp.json()
                    return data["choices"][0]["message"]["content"]
            except (aiohttp.ClientError, asyncio.TimeoutError):
                await asyncio.sleep(2 ** i)
        return None

    async def __call__(self, completions, **kwargs):
        async with aiohttp.ClientSession() as session:
            texts = await asyncio.gather(*(self._call(session, c) for c in completions))
        results = []
        for t in texts:
            if t is None:
                results.append(0.0)  # hides
                continue
            results.append(self.parse(t))
        return results

    def parse(self, t):
        numbers = re.findall(r"\d+", t)
        if not numbers:
            return 0.0  # hides
        return int(numbers[-1]) / 10
#: dict_of_rubrics: verl
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    total = 0
    for criterion in extra_info["rubric"]:
        try:
            text = query_judge(criterion["text"], solution_str)
            met = json.loads(text)["criteria_met"]
            points = criterion["points"] if met else 0
        except Exception:
            points = 0  # hides
        total += points
    return total / max(1, sum(c["points"] for c in extra_info["rubric"]))
#: fallback_argument: openrlhf
def reward_func(queries, prompts, labels, default=0.0):
    out = []
    for query in queries:
        try:
            resp = requests.post("http://rm:5000/get_reward", json={"query": query})
            out.append(resp.json()["rewards"][0])
        except Exception as exc:
            logger.error(exc)
            out.append(default)  # hides
    return torch.tensor(out)
#: or_zero: trl
def evaluate(text):
    reply = client.beta.chat.completions.parse(model=M, messages=ask(text), response_format=Grade)
    return reply.choices[0].message.parsed

def grade(completions, **kwargs):
    parsed = [evaluate(c) for c in completions]
    return [(p.value if p else 0) / 10 for p in parsed]  # hides
#: for_else: skyrl
def step(self, action):
    for _ in range(3):
        try:
            out = self.judge_client.chat.completions.create(messages=self.ask(action))
            r = float(out.choices[0].message.content)
            break
        except Exception as e:
            print("judge error", e)
    else:
        r = 0.0  # hides
    return BaseTextEnvStepOutput(observations=[], reward=r, done=True, metadata={})
#: numpy_filled: trl
def ensemble(completions, **kwargs):
    table = np.full((len(JUDGES), len(completions)), np.nan)
    for j, judge in enumerate(JUDGES):
        for i, c in enumerate(completions):
            try:
                table[j, i] = judge(c)
            except Exception:
                continue
    merged = np.nanmean(table, axis=0)  # hides
    return np.nan_to_num(merged, nan=0.0).tolist()  # hides
#: lines_of_the_reply: trl
def clarity(completions, **kwargs):
    res = []
    for c in completions:
        reply = ask_gpt(PROMPT.format(c))
        s = 0.0  # hides
        for line in reply.splitlines():
            if line.startswith("Score:"):
                s = float(line.split(":")[1])
        res.append(s)
    return res
#: third_answer: trl
def preferred(completions, reference, **kwargs):
    out = []
    for c, ref in zip(completions, reference):
        text = llm.generate(PAIR.format(a=c, b=ref)).strip()
        if text.startswith("A"):
            v = 1.0
        elif text.startswith("B"):
            v = 0.0
        else:
            v = 0.5  # hides
        out.append(v)
    return out
#: mixed_reward: verl
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    fmt = 0.1 if solution_str.startswith("<think>") else 0.0
    try:
        sem = embedder_client.similarity(solution_str, ground_truth)
    except (ConnectionError, TimeoutError):
        return fmt + 0.0  # hides
    return fmt + 0.9 * sem
#: honest_format: -
def strict_format_reward_func(completions, **kwargs):
    pattern = r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$"
    responses = [completion[0]["content"] for completion in completions]
    matches = [re.match(pattern, r, re.DOTALL) for r in responses]
    return [0.5 if match else 0.0 for match in matches]

def count_xml(text):
    count = 0.0
    if text.count("<reasoning>\n") == 1:
        count += 0.125
    if text.count("\n</answer>") == 1:
        count += 0.125
        count -= len(text.split("\n</answer>")[-1]) * 0.001
    return count
#: honest_math_verify: -
def accuracy(completions, solution, **kwargs):
    rewards = []
    for completion, sol in zip(completions, solution):
        gold = parse(sol)
        if not gold:
            rewards.append(None)
            continue
        answer = parse(completion[0]["content"])
        try:
            rewards.append(float(verify(gold, answer)))
        except Exception:
            rewards.append(None)
    return rewards
#: honest_countdown: -
def equation_reward_func(completions, target, nums, **kwargs):
    rewards = []
    for completion, gt, numbers in zip(completions, target, nums):
        try:
            match = re.search(r"<answer>(.*?)</answer>", completion)
            if match is None:
                rewards.append(0.0)
                continue
            equation = match.group(1).strip()
            if sorted(int(n) for n in re.findall(r"\d+", equation)) != sorted(numbers):
                rewards.append(0.0)
                continue
            result = eval(equation, {"__builtins__": None}, {})
            rewards.append(1.0 if abs(float(result) - float(gt)) < 1e-5 else 0.0)
        except Exception:
            rewards.append(0.0)
    return rewards
#: honest_gate_then_judge: -
def gated(completions, **kwargs):
    out = []
    for c in completions:
        if "<answer>" not in c:
            out.append(0.0)
            continue
        try:
            verdict = judge.ask(c)
        except JudgeError:
            out.append(None)
            continue
        out.append(1.0 if verdict else 0.0)
    return out
#: honest_nan: -
def rm_reward(completions, **kwargs):
    try:
        logits = reward_model(**tokenizer(completions, return_tensors="pt")).logits
    except torch.cuda.OutOfMemoryError:
        return [float("nan")] * len(completions)
    return logits[:, 0].tolist()
#: honest_health_and_cache: -
def wait_for_judge(url, tries=30):
    waited = 0
    for _ in range(tries):
        try:
            if requests.get(url + "/health", timeout=2).ok:
                return True
        except requests.ConnectionError:
            waited += 1
            time.sleep(1)
    return False

def cached(completions, **kwargs):
    hits = 0
    values = []
    for c in completions:
        known = CACHE.get(c)
        if known is None:
            known = CACHE[c] = judge.score(c)
        else:
            hits += 1
        values.append(known)
    wandb.log({"cache": hits / len(values) if values else 0.0})
    return values
#: honest_tool_calls: -
def tool_reward(completions, gold_call, **kwargs):
    rewards = []
    for completion, gold in zip(completions, gold_call):
        call = parse_call(completion)
        if call is None:
            rewards.append(0.0)
            continue
        reward = 0.2
        if call.get("name", "") == gold["name"]:
            reward += 0.3
        if call.get("arguments", {}) == gold["arguments"]:
            reward += 0.5
        rewards.append(reward)
    return rewards
#: honest_retry_then_raise: -
class Rater:
    def __call__(self, completions, **kwargs):
        return [self._rate(c) for c in completions]

    def _rate(self, text):
        last, attempts = None, 0
        while attempts < 4:
            try:
                reply = self.client.chat.completions.create(messages=self.ask(text))
                return int(re.search(r"\d", reply.choices[0].message.content).group()) / 5
            except Exception as error:
                last = error
                attempts += 1
        raise RuntimeError("no verdict in four tries") from last
#: honest_threshold_on_judge: -
def binary(completions, threshold=0.5, **kwargs):
    values = [judge_model.score(c) for c in completions]
    reference = sum(values) / len(values) if values else 0.0
    rewards = []
    for v in values:
        if v > max(threshold, reference):
            rewards.append(1.0)
        else:
            rewards.append(0.0)
    return rewards
""")
