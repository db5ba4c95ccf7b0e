# What docs/went-wrong.md works on: `bash fault ARGUMENTS` starts a judge with faults on $PORT in the
# place of the one before; four rollouts with a spec; a run whose judge gives each answer the same
# score; one whose judge failed in steps 2 and 3; one whose policy exploits its judge.
cat > fault <<'END'
if [ -f pid ]; then kill $(cat pid); fi
start() { adjudge mock --port $PORT --json "$@" > mock.json 2> mock.log & echo $! > pid; }
start "$@"
for second in $(seq 400); do
    if grep -q url mock.json; then break; fi
    if grep -q listen mock.log; then start "$@"; fi  # the one before still has the port
    sleep 0.05
done
END
cat > rollouts.jsonl <<'END'
{"prompt": "6 * 7?", "response": "It is 42.", "reference": "42"}
{"prompt": "6 * 7?", "response": "It is 41.", "reference": "42"}
{"prompt": "6 * 7?", "response": "42", "reference": "42"}
{"prompt": "6 * 7?", "response": "I cannot say.", "reference": "42"}
END
cat > reward.toml <<'END'
version = 1

[[graders]]
name = "helpful"
type = "helpfulness"

[judges.main]
type = "vllm"
model = "mock"
base_url = "http://127.0.0.1:${PORT}/v1"
END
sed 's/"helpful"/"right"/; s/helpfulness/answer/; /^\[judges/,$d' reward.toml > rule.toml
(cat reward.toml; printf '[judges.main.endpoint]\nmax_attempts = 1\n') > once.toml
cat > hacked.toml <<'END'
[[graders]]
name = "helpful"
type = "helpfulness"
[[graders]]
name = "correct"
type = "answer"
weight = 0
[judges.main]
type = "scripted"
script = { "thorough. Very" = '{"reason": "thorough", "score": 5}', "" = '{"reason": "short", "score": 1}' }
END
bash fault
python - <<'END'
import random
import subprocess

from adjudge import RewardSample
from adjudge.trainers.scoring import Scorer


def score(scorer, step, texts):
    samples = [
        RewardSample(n, n % 4, f"{n // 4}: 6 * 7?", text, extra={"reference": "42"})
        for n, text in enumerate(texts)
    ]
    scorer.score(samples, [one.prompt for one in samples], step=step)


flat = Scorer("once.toml", record="runs/flat")
for step in range(6):
    score(flat, step, [f"It is {40 + n}." for n in range(16)])
flat.recorder.close()

night = Scorer("once.toml", record="runs/night")
for step in range(6):
    if step == 2:
        subprocess.run(["bash", "fault", "--seed", "4", "--fail", "503:0.5"])
    if step == 4:
        subprocess.run(["bash", "fault"])
    score(night, step, [f"It is {40 + n}." for n in range(16)])
night.recorder.close()

hacked, draw = Scorer("hacked.toml", record="runs/hacked"), random.Random(0)
for step in range(40):
    ends = ["\\boxed{42}" if draw.random() > step / 40 else "\\boxed{41}" for _ in range(32)]
    score(hacked, step, ["Very thorough. " * draw.randint(0, 2 + step // 2) + one for one in ends])
hacked.recorder.close()
END
