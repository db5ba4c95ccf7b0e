"""Snippets of reward code that the code check must find something in.

Each begins with a line ``#: name: rules``.
"""

__all__ = ["FOUND", "snippets"]


def snippets(text: str) -> dict[str, tuple[str, str]]:
    """(rules, code) by name."""
    found = {}
    for part in text.split("#: ")[1:]:
        head, _, code = part.partition("\n")
        name, _, rules = head.partition(": ")
        assert name not in found, name
        found[name] = (rules, code.rstrip() + "\n")
    return found


FOUND = snippets(r"""
#: hasattr: default-score
s = result.score if hasattr(result, 'score') else 0.0
#: hasattr_turned: default-score
s = 0.0 if not hasattr(r, 'score') else r.score
#: isinstance: default-score
s = r.score if isinstance(r, GraderScore) else -1.0
#: isinstance_error: default-score
v = 0 if isinstance(out, Exception) else out
#: getattr: default-score
total += getattr(r, 'score', 0.0)
#: getattr_reward: default-score
x = getattr(reply, 'reward', -1)
#: get: default-score
return_value = float(json.loads(text).get('score', 0))
#: get_named: default-score
x = parsed.get('quality_score', 5.0)
#: get_of_scores: default-score
x = scores.get(request_id, 0.0)
#: pop: default-score
score = parsed.pop('score', 0)
#: or: default-score
reward = verdict.score or 0.0
#: or_name: default-score
rewards = [score or 0.0 for score in scores]
#: or_none: default-score
x = getattr(r, 'score', None) or 0.0
#: is_not_none: default-score
x = score if score is not None else 0.0
#: is_none: default-score
x = 0.5 if r.score is None else r.score
#: status: default-score
x = reply.json()['score'] if reply.status_code == 200 else 0.0
#: next: default-score
x = next((r.score for r in replies), 0.0)
#: named_default: default-score
x = r.score if r else self.default_score
#: if_none: default-score
if score is None:
    score = 0.0
#: if_error: default-score
for r in found:
    if isinstance(r, GraderError):
        scores.append(0.0)
    else:
        scores.append(r.score)
#: if_hasattr: default-score
if hasattr(r, 'score'):
    reward = r.score
else:
    reward = 0.0
#: if_status: default-score
def reward(text):
    reply = requests.post(URL, json=text)
    if reply.status_code != 200:
        return 0.0
    return reply.json()['value']
#: if_no_key: default-score
def judge_reward(parsed):
    if 'score' not in parsed:
        return 0.0
    return parsed['score']
#: nan_to_num: nan-filled
rewards = torch.nan_to_num(rewards, nan=0.0)
#: nan_to_num_method: nan-filled
rewards = rewards.nan_to_num(0.0)
#: fillna: nan-filled
x = frame['score'].fillna(0)
#: isnan_mask: nan-filled
rewards[torch.isnan(rewards)] = 0.0
#: isnan_where: nan-filled
rewards = np.where(np.isnan(rewards), 0.0, rewards)
#: isnan_choice: nan-filled
x = 0.0 if math.isnan(score) else score
#: except_return: except-judge
async def reward(text):
    try:
        return await judge.rate(text)
    except Exception:
        return 0.0
#: except_assign: except-judge
try:
    score = client.chat.completions.create(**ask)
except Exception as error:
    log(error)
    score = 0
#: except_append: except-judge
for t in texts:
    try:
        scores.append(ask_judge(t))
    except ValueError:
        scores.append(0.0)
#: except_batch: except-judge
def rewards(texts):
    try:
        return grader.run(texts)
    except:
        return [0.0] * len(texts)
#: except_batch_listed: except-judge
def rewards(texts):
    try:
        return grader.run(texts)
    except Exception:
        return [0.0 for _ in texts]
#: except_dict: except-broad
def compute(solution, truth):
    try:
        return check(solution, truth)
    except Exception as e:
        return {'score': 0.0, 'error': str(e)}
#: except_object: except-judge
async def aevaluate(self, text):
    try:
        return await self.judge(text)
    except Exception as e:
        return GraderScore(name='x', score=0.0, reason=str(e))
#: except_pair: except-broad
def compute_score(a, b):
    try:
        return bleu(a, b), {}
    except Exception as e:
        return 0.0, {'error': str(e)}
#: except_timeout: except-judge
try:
    scores = asyncio.run(everything(texts))
except asyncio.TimeoutError:
    scores = [0.0 for _ in range(n)]
#: except_tensor: except-judge
try:
    rewards = reward_model(batch)
except RuntimeError:
    rewards = torch.zeros(len(batch))
#: except_default_name: except-judge
try:
    reward = judge(x)
except Exception:
    reward = self.fallback_reward
#: suppress: preset-score
def f(x):
    score = 0.0
    with contextlib.suppress(Exception):
        score = judge(x)
    return score
#: preset: preset-score
def f(x):
    score = 0.0
    try:
        score = judge(x)
    except Exception as e:
        logger.warning('failed: %s', e)
    return score
#: retries: gave-up
def judge_score(x):
    for attempt in range(3):
        try:
            return float(client.ask(x))
        except Exception:
            time.sleep(2)
    return 0.0
#: tenacity: gave-up
@retry(stop=stop_after_attempt(3), retry_error_callback=lambda state: 0.0)
def judge_score(x):
    return ask(x)
#: no_match: no-match
def parse_judge_score(reply):
    match = re.search(r'(\d+)', reply)
    return int(match.group(1)) if match else 0
#: in_threads: except-judge
def f(texts):
    got = [None] * len(texts)
    def work(i):
        try:
            got[i] = call_llm(texts[i])
        except Exception:
            got[i] = 0
    for thread in [Thread(target=work, args=(i,)) for i in range(len(texts))]:
        thread.start()
        thread.join()
    return got
#: constant_of_the_class: except-judge
class R:
    LOWEST = -1.0
    def one(self, t):
        try:
            return self.judge(t)
        except Exception:
            return self.LOWEST
#: by_a_helper: except-judge
def f(t):
    try:
        reply = client.chat.completions.create(model=M, messages=t)
    except Exception:
        return nothing()
    return float(reply.choices[0].message.content)
def nothing():
    return 0.0
#: neither_was_said: no-match
def f(text):
    said = llm.invoke(PAIR.format(text)).strip()
    if said == "A":
        return 1.0
    elif said == "B":
        return 0.0
    else:
        return 0.5
#: nanmean: nan-filled
def f(texts):
    table = [[judge(t) for t in texts] for judge in JUDGES]
    return np.nanmean(table, axis=0)
#: handed_to_a_pool: except-judge
def f(texts):
    out = []
    for future in [pool.submit(ask_judge, t) for t in texts]:
        try:
            out.append(future.result())
        except Exception:
            out.append(-1)
    return out
#: no_match_branch: no-match
def parse(judge_text):
    m = PATTERN.search(judge_text)
    if not m:
        return 0.0
    return float(m[1])
""")
