"""The model that training begins with: a tiny one or a loaded one, in float32, with LoRA adapters.

``path = "tiny"`` is built on the spot; for a judge that writes it is large enough to read a
question of some 450 tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from adjudge.errors import ConfigError
from adjudge.judges.models.local_inference import batch_by_length
from adjudge_lab.judge_training.distributed import is_main_process
from adjudge_lab.judge_training.judge_file import TINY_MODEL, JudgeFile, LoraTable
from adjudge_lab.rl.tiny import build_tiny_model, build_tiny_tokenizer
from adjudge_lab.rl.trainer_settings import MODEL_OPTIONS

AutocastFactory = Callable[[], Any]
"""Makes a context for the arithmetic."""

_TINY_VOCABULARY, _TINY_JUDGE_VOCABULARY = 420, 800
"""Of a judge that writes the prompt's words in one piece: with 420 it is over 700 tokens long."""
_TINY_INIT_RANGE, _TINY_JUDGE_INIT_RANGE = 0.8, 0.64
"""Standard deviations of fresh weights, times √hidden, of a scalar judge and of one that writes: so
narrow a model then starts at once."""


def load_base_model(judge: JudgeFile, texts: Iterable[str]) -> tuple[Any, Any]:
    """Model and tokenizer: one output for a scalar judge, a language model otherwise.

    Weights are float32 whatever they were saved in, since small steps are lost in 16 bits, unless
    ``[trl.model_init_kwargs]`` says another ``dtype``. ``texts`` are what a tiny model's tokenizer
    is made from. Raises :class:`ConfigError`.
    """
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    torch.manual_seed(judge.trainer.seed)
    if judge.model.path == TINY_MODEL:
        return _tiny_model(judge, texts)
    kind = transformers.AutoModelForCausalLM
    options: dict[str, Any] = {
        "dtype": torch.float32,
        **judge.trl.get(MODEL_OPTIONS, {}),
        "use_safetensors": True,
    }
    if judge.is_scalar:
        kind = transformers.AutoModelForSequenceClassification
        options["num_labels"] = 1
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(judge.base)
        model = kind.from_pretrained(judge.base, **options)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, ImportError) as error:
        first = (str(error).strip().splitlines() or [""])[0][:300]
        raise ConfigError(f"model.path: {judge.base}: cannot be loaded: {first}") from error
    if not tokenizer.chat_template:
        raise ConfigError(
            f"model.path: {judge.base} has no chat template. Use a model that was made for "
            "conversations."
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def _tiny_model(judge: JudgeFile, texts: Iterable[str]) -> tuple[Any, Any]:
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    seed, size = judge.trainer.seed, judge.model.size
    words = _TINY_VOCABULARY if judge.mode is None else _TINY_JUDGE_VOCABULARY
    tokenizer = build_tiny_tokenizer(texts, vocabulary=words)
    model = build_tiny_model(tokenizer, seed=seed, hidden=size.hidden, layers=size.layers)
    if judge.is_scalar:
        tokenizer.padding_side = "right"
        model.config.num_labels = 1
        model.config.initializer_range = _TINY_INIT_RANGE / math.sqrt(size.hidden)
        model = transformers.Qwen3ForSequenceClassification(model.config)
    elif judge.mode is not None:
        model.config.initializer_range = _TINY_JUDGE_INIT_RANGE / math.sqrt(size.hidden)
        torch.manual_seed(seed)
        generation = model.generation_config
        model = transformers.Qwen3ForCausalLM(model.config)
        model.generation_config = generation
    return model, tokenizer


def add_lora(model: Any, lora: LoraTable | None, *, scalar: bool) -> Any:
    """``model`` with low-rank adapters where ``[lora]`` is given, its other weights frozen.

    A scalar judge's output layer is trained in full. Raises :class:`ConfigError` without peft, and
    where no module has one of the names.
    """
    if lora is None:
        return model
    try:
        peft: Any = import_module("peft")
    except ImportError:
        raise ConfigError(
            "[lora] needs peft, which is not installed. Leave the table out, or run: pip install "
            "peft"
        ) from None
    settings = peft.LoraConfig(
        task_type="SEQ_CLS" if scalar else "CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules="all-linear",
        modules_to_save=["score"] if scalar else None,
    )
    return peft.get_peft_model(model, settings)


def weight_snapshot(model: Any) -> dict[str, tuple[float, float]]:
    """A trace of every trainable weight's values, by which to see that it was trained."""
    return {
        name: (float(weight.detach().double().sum()), float(weight.detach().double().norm()))
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


def parameter_changes(
    model: Any, before: dict[str, tuple[float, float]], *, lora: bool
) -> dict[str, int]:
    """Counts of weights: all, trainable, and tensors that changed since ``before``.

    Raises :class:`ConfigError` where nothing was trained, or no adapter was: a run in which
    ``[lora]`` did nothing is not the run that the user asked for.
    """
    after = weight_snapshot(model)
    changed = [name for name, trace in after.items() if trace != before.get(name)]
    counts = {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "trainable": sum(w.numel() for w in model.parameters() if w.requires_grad),
        "tensors": len(after),
        "tensors_changed": len(changed),
    }
    if not changed or (lora and not any("lora_" in name for name in changed)):
        what = "adapter" if lora and changed else "weight"
        raise ConfigError(
            f"no {what} changed in training, up to the best step. Raise optim.lr, or give more "
            "rows."
        )
    return counts


def merge_lora(model: Any, lora: LoraTable | None) -> Any:
    """The plain model, adapters added into its weights."""
    return model if lora is None else model.merge_and_unload()


def unwrap_model(model: Any) -> Any:
    """A copy of ``model`` without its weights; :func:`gather_full_model` puts them back into it."""
    import torch  # noqa: PLC0415

    known = {
        id(weight): torch.nn.Parameter(
            torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad
        )
        for weight in model.parameters()
    }
    return copy.deepcopy(model, known)


def gather_full_model(trainer: Any, model: Any, plain: Any) -> Any:
    """The trained model in one piece, in the first process; in the others what they have of it.

    ``plain`` is the bare copy that a model in parts is put together in, which is made in main
    memory and moved to the GPU if that has room. All processes have to ask.
    """
    if not trainer.is_fsdp_enabled:
        return model
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    return restore_weights(plain, state, trainer.args.device) if is_main_process() else model


def restore_weights(plain: Any, state: Mapping[str, Any], device: Any) -> Any:
    """``plain`` with the weights of ``state``, tied ones tied again, on ``device`` if they fit."""
    import torch  # noqa: PLC0415

    plain.load_state_dict(state, assign=True)
    plain.tie_weights()
    size = sum(weight.numel() * weight.element_size() for weight in plain.parameters())
    fits = device.type == "cuda" and torch.cuda.mem_get_info(device)[0] > 1.2 * size
    return plain.to(device) if fits else plain


def ask_by_length(
    model: Any,
    texts: Sequence[Sequence[int]],
    ask: Callable[..., list[Any]],
    *,
    pad: int,
    size: int,
    autocast: AutocastFactory,
    pad_left: bool = False,
) -> list[Any]:
    """What ``ask`` finds for each of ``texts``, those of like length ``size`` at once.

    It is given ``input_ids`` and ``attention_mask``, padded, while ``model`` does not train.
    """
    import torch  # noqa: PLC0415

    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    found: list[Any] = [None] * len(texts)
    for places in batch_by_length([len(text) for text in texts], size):
        longest = max(len(texts[place]) for place in places)
        ids, mask = [], []
        for text in (texts[place] for place in places):
            row, gap = [*text], longest - len(text)
            ids.append([pad] * gap + row if pad_left else row + [pad] * gap)
            mask.append([0] * gap + [1] * len(row) if pad_left else [1] * len(row) + [0] * gap)
        with torch.inference_mode(), autocast():
            answers = ask(
                input_ids=torch.tensor(ids, device=device),
                attention_mask=torch.tensor(mask, device=device),
            )
        for place, answer in zip(places, answers, strict=True):
            found[place] = answer
    model.train(was_training)
    return found


def greedy_replies(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    *,
    most: int,
    size: int,
    autocast: AutocastFactory,
) -> list[tuple[str, bool]]:
    """The likeliest reply to each prompt, at most ``most`` tokens, and whether it was cut there.

    Prompts of like length are asked together, ``size`` at once. Draws nothing at random.
    """
    import transformers  # noqa: PLC0415

    ends = end_token_ids(model, tokenizer)
    pad = tokenizer.pad_token_id
    settings = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=most, eos_token_id=sorted(ends), pad_token_id=pad
    )

    def reply(**batch: Any) -> list[list[int]]:
        said = model.generate(**batch, generation_config=settings)
        tokens: list[list[int]] = said[:, batch["input_ids"].shape[1] :].tolist()
        return tokens

    found = ask_by_length(
        model, prompts, reply, pad=pad, size=size, autocast=autocast, pad_left=True
    )
    return [decode_reply_tokens(tokenizer, tokens, ends) for tokens in found]


def end_token_ids(model: Any, tokenizer: Any) -> set[int]:
    """The tokens that end a judge's turn."""
    known = model.generation_config.eos_token_id
    many = known if isinstance(known, list) else [known]
    return {one for one in [*many, tokenizer.eos_token_id] if one is not None}


def decode_reply_tokens(tokenizer: Any, tokens: Sequence[int], ends: set[int]) -> tuple[str, bool]:
    """The text of a reply up to the token that ends it, and whether there was none: it was cut."""
    end = next((place for place, one in enumerate(tokens) if one in ends), None)
    text: str = tokenizer.decode(tokens[:end], skip_special_tokens=False)
    return text, end is None
