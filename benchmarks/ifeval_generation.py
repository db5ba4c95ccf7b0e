"""IFEval responses of one model by llama.cpp and by transformers, on the same weights.

``adjudge eval ifeval`` generates with llama.cpp, greedily, once for each number format;
transformers generates the same prompts in float32 from the first file's weights, dequantised.
Printed: on how many prompts both have the same verdict, and how many texts are equal.

    python benchmarks/ifeval_generation.py --data input_data.jsonl --peer-python PATH -o OUT

``--peer-python`` has torch, transformers and gguf; this Python has xllamacpp, gguf and langdetect.
What is in OUT already is not generated again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "lab" / "src")]


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def generate_with_transformers(prompts: Path, model: Path, out: Path, tokens: int) -> None:
    """Greedy responses in float32, all prompts in one batch, padded on the left."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    place, name = str(model.parent), model.name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name, padding_side="left")
    policy = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32)
    rows = read_rows(prompts)
    chats = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    texts = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        for chat in chats
    ]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    tokenizer.pad_token_id = end
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.inference_mode():
        made = policy.generate(
            **batch, do_sample=False, max_new_tokens=tokens, eos_token_id=end, pad_token_id=end
        )
    with out.open("w", encoding="utf-8") as file:
        for row, ids in zip(rows, made[:, batch["input_ids"].shape[1] :].tolist(), strict=True):
            whole = end in ids
            text = tokenizer.decode(ids[: ids.index(end)] if whole else ids)
            about = {"finish_reason": "stop" if whole else "length"}
            file.write(json.dumps({"prompt": row["prompt"], "response": text, **about}) + "\n")


def make_file(weights: str, folder: Path) -> Path:
    """The fetched file, or its weights in another format."""
    from adjudge.judges.models.model_files import (
        MODEL_FILES,
        find_model_file,
        requantize_gguf,
    )

    fetched = find_model_file("smollm2")
    if weights == MODEL_FILES["smollm2"].weights:
        return fetched
    path = folder / f"smollm2-{weights.lower()}.gguf"
    if not path.exists():
        requantize_gguf(fetched, path, weights)
    return path


def compare(prompts: Path, ours: Path, theirs: Path) -> dict[str, Any]:
    """How often the two agree, on the prompts that both have."""
    from adjudge_lab.evaluation.ifeval.report import score_ifeval

    inputs = read_rows(prompts)
    replies = [{row["prompt"]: row for row in read_rows(path)} for path in (ours, theirs)]
    verdicts = []
    for found in replies:
        report = score_ifeval(inputs, [row for row in found.values() if "response" in row])
        verdicts.append({row.prompt: row.followed("strict") for row in report.rows})
    both = [place for place in verdicts[0] if place in verdicts[1]]
    pairs = [[one[place] for one in verdicts] for place in both]
    texts = [[one[place]["response"] for one in replies] for place in both]
    same = sum(all(a) == all(b) for a, b in pairs)
    labels = [x == y for a, b in pairs for x, y in zip(a, b, strict=True)]
    return {
        "prompts": len(both),
        "same_prompt_verdict": same,
        "instructions": len(labels),
        "same_instruction_verdict": sum(labels),
        "same_text": sum(a == b for a, b in texts),
        "prompt_strict": [sum(all(pair[at]) for pair in pairs) / len(both) for at in (0, 1)],
        "to_the_limit": [
            sum(one[place]["finish_reason"] == "length" for place in both) for one in replies
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("-o", "--folder", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--weights", nargs="+", default=["Q8_0", "F32"])
    parser.add_argument("--only", choices=("llama.cpp", "transformers"))
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    prompts = folder / "prompts.jsonl"
    rows = read_rows(given.data)
    chosen = sorted(random.Random(given.seed).sample(range(len(rows)), given.prompts))
    prompts.write_text("".join(json.dumps(rows[at]) + "\n" for at in chosen), encoding="utf-8")
    limit = str(given.max_tokens)

    theirs = folder / f"transformers-{limit}.jsonl"
    if given.only != "llama.cpp" and not theirs.exists():
        file = str(make_file(given.weights[0], folder))
        part = theirs.with_suffix(".part")
        own = [__file__, "--transformers", str(prompts), file, str(part), limit]
        subprocess.run([given.peer_python, *own], check=True)
        part.rename(theirs)
    for weights in given.weights:
        out = folder / f"llama-{weights}-{limit}"
        if given.only != "transformers":
            command = [sys.executable, "-m", "adjudge_lab", "eval", "ifeval", "-q", "--json"]
            command += ["--model", str(make_file(weights, folder)), "--max-tokens", limit]
            paths = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])
            subprocess.run(
                [*command, "--data", str(prompts), "-o", str(out)],
                check=True,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": paths},
            )
        if theirs.exists() and out.exists():
            found = compare(prompts, out / "responses.jsonl", theirs)
            print(json.dumps({"weights": weights, "max_tokens": given.max_tokens, **found}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--transformers"]:
        data, model, out, limit = sys.argv[2:6]
        generate_with_transformers(Path(data), Path(model), Path(out), int(limit))
    else:
        main()
