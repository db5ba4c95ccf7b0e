"""Snippets of reward code that the code check must leave alone; written as those it must not."""

from tests.unit.code_check_corpus import snippets

__all__ = ["CLEAN"]

CLEAN = snippets(r"""
#: none: -
score = getattr(result, 'score', None)
#: none_total: -
total = None if None in scores.values() else sum(scores.values()) / len(scores)
#: get_none: -
score = parsed.get('score')
#: weights: -
weight = config.get('score_weight', 1.0)
#: weight_of_score: -
scale = getattr(args, 'reward_scale', 1.0)
#: settings: -
x = kwargs.get('score', 1.0)
#: search_hits: -
best = hit.get('score', 0.0)
#: constants: -
x = SEVERITY_SCORE.get(word, 2)
#: sorted: -
order = sorted(rows, key=lambda row: row.get('score', 0))
#: counting: -
scores[name] = scores.get(name, 0) + 1
#: shown: -
print(f"score {row.get('score', 0):.2f}")
#: logged: -
logger.info('score %s', result.score or 0.0)
#: decision: -
reward = 1.0 if answer == truth else 0.0
#: gate: -
reward = score if is_correct else 0.0
#: gate_branch: -
if verdict:
    reward = 1.0
else:
    reward = 0.0
#: threshold: -
reward = score if score > 0.5 else 0.0
#: division: -
z = (reward - mean) / std if std else 0.0
#: weights_division: -
final = total_score / total_weight if total_weight > 0 else 0.0
#: format_gate: -
score = bonus if THINK.search(text) is not None else 0.0
#: format_gate_named: -
def format_reward(text):
    match = THINK.search(text)
    return 1.0 if match else 0.0
#: answer_missing: -
def accuracy_reward(text, truth):
    match = re.search(r'####(.*)', text)
    if not match:
        return 0.0
    return float(match.group(1) == truth)
#: empty_answer: -
def reward(text):
    if not text.strip():
        return 0.0
    return f(text)
#: wrong_answer_does_not_parse: -
def accuracy_reward(text, truth):
    try:
        return float(float(text) == truth)
    except ValueError:
        return 0.0
#: wrong_answer_of_any_kind: -
def accuracy_reward(text, answer):
    try:
        return float(parse(text) == answer)
    except Exception:
        return 0.0
#: wrong_code_runs_on: -
def code_reward(code):
    try:
        done = subprocess.run(code, timeout=5)
    except subprocess.TimeoutExpired:
        return 0.0
    return float(done.ok)
#: except_none: -
async def reward(x):
    try:
        return await judge(x)
    except Exception:
        return None
#: except_nan: -
async def reward(x):
    try:
        return await judge(x)
    except TimeoutError:
        return float('nan')
#: except_raise: -
try:
    score = judge(x)
except Exception as e:
    score = 0.0
    raise Failed(e) from e
#: except_counter: -
try:
    judge(x)
except Exception:
    failures += 1
    retries = 0
#: except_elsewhere: -
def load(path):
    try:
        return read(path)
    except Exception:
        return 0
#: preset_used: -
def f(x):
    score = 0.0
    try:
        score = judge(x)
    except Exception:
        raise
    return score
#: preset_missing: -
def f(x):
    score = None
    try:
        score = judge(x)
    except Exception:
        pass
    return score
#: running_total: -
def f(parts):
    total_score = 0.0
    for p in parts:
        total_score += p
    return total_score
#: retries_raise: -
def judge_score(x):
    for _ in range(3):
        try:
            return ask(x)
        except Exception:
            pass
    raise RuntimeError('no reply')
#: default_argument: -
def f(score=None):
    if score is None:
        score = 0.0
    return score
#: compute_function: -
self.compute_score = compute_score or default_compute_score
#: nan_elsewhere: -
features = np.nan_to_num(features)
#: batch_mean_for_logs: -
def log(rewards):
    present = [r for r in rewards if r is not None]
    metrics['mean'] = sum(present) / len(present)
#: quorum: -
def f(results):
    scores = [r.score for r in results if hasattr(r, 'score')]
    if len(scores) < QUORUM:
        return None
    return sum(scores) / len(scores)
#: decision_of_a_function: -
def grade(text):
    try:
        x = 1.0 if done(text) else level(judge.read(text))
    except Exception:
        x = None
    return x
def level(word):
    if "bad" in word:
        return -1.0
    return 0.1
#: error_codes: -
def check_reward(code):
    try:
        return tests_of(code).run()
    except Exception as e:
        return {"error": repr(e), "error_code": -4}
#: settings_by_default: -
sampling = judge_reply_settings or {"temperature": 0.2, "top_p": 0.95}
#: durations: -
def f(texts):
    durations = [judge.ask(t).seconds for t in texts]
    return {"slowest": max(durations) if durations else 0.0}
#: yes_or_no: -
def f(text):
    word = judge.ask(text).strip().lower()
    return 1.0 if word in ("yes", "y") else 0.0
#: meant: -
score = parsed.get('score', 0)  # adjudge: meant
#: other_status: -
x = node.idle_ms if node.status == Status.IDLE else 0
#: default_settings: -
def default_config():
    return {"reward": 1.0, "steps": 10}
#: words_only: -
# score = 0.0 if failed
TEXT = 'except Exception: score = 0.0'
""")
