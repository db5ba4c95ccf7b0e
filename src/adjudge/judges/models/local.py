"""``LocalChatModel`` and ``LocalScalarModel``: judges that run in this process."""

from __future__ import annotations

import asyncio
import time
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from adjudge.engine.loop import ProcessLocal
from adjudge.errors import ConfigError, ErrorKind, Fields, GradingFailure
from adjudge.judges.base import (
    ChatCall,
    ChatModel,
    LocalTask,
    Reply,
    ScalarReading,
    check_scored_conversation,
    find_ignored_features,
)
from adjudge.judges.models import local_inference
from adjudge.judges.models.local_inference import BatchQueue, LocalSampling
from adjudge.judges.models.local_loading import (
    LocalModelSpec,
    check_device,
    compute_model_digest,
    load_model,
    read_control_tokens,
)
from adjudge.text import split_thinking
from adjudge.types import Provenance, Usage


class _LocalEngine(BatchQueue):
    """One loaded model of this process, and the thread that asks it."""

    def __init__(self, wanted: LocalModelSpec) -> None:
        self.load = cache(partial(load_model, wanted))
        """The model, loaded if need be; in the engine's thread."""
        compute: Any = local_inference.score_conversations
        if wanted.task == "chat":
            compute = local_inference.generate_answers
        size = wanted.batch_size
        super().__init__(lambda asked: compute(self.load(), asked, size), size=size)


# A forked child has none of the parent's threads; its models are kept referenced, not freed.
_engines: ProcessLocal[dict[LocalModelSpec, _LocalEngine]] = ProcessLocal(dict)


class _LocalModel(ChatModel):
    """What both kinds share: configuration; the loaded model belongs to the process."""

    kind = "local"
    task: ClassVar[LocalTask]

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        max_length: int | None = None,
        batch_size: int = 16,
        **sampling: Any,
    ) -> None:
        self.model = str(model)
        self.spec = LocalModelSpec(self.model, self.task, device, dtype, max_length, batch_size)
        if sampling and self.task == "score":
            raise ConfigError(f"{next(iter(sampling))}: a scalar judge does not sample")
        self.sampling = sampling
        try:
            _parse_sampling(sampling)
        except GradingFailure as failure:
            raise ConfigError(str(failure)) from None

    @property
    def fingerprint(self) -> str:
        """A digest of the model's folder; ``""`` for a name."""
        return compute_model_digest(self.model)

    @cached_property
    def control_tokens(self) -> frozenset[str]:  # type: ignore[override]  # found when first asked
        """Those of its own tokenizer; empty where that cannot be loaded, which the call will say.

        Read from the folder's files; for a name the tokenizer is loaded, not the model.
        """
        try:
            return read_control_tokens(self.model)
        except ConfigError:
            return frozenset()

    def check_machine(self) -> None:
        """The libraries are installed, and the device that is asked for is here."""
        check_device(self.spec)

    def _engine(self) -> _LocalEngine:
        with _engines.lock:
            if self.spec not in _engines.value:
                _engines.value[self.spec] = _LocalEngine(self.spec)
            return _engines.value[self.spec]

    async def start(self) -> None:
        """Load the model now and not with the first call; raises :class:`ConfigError`."""
        engine = self._engine()
        await engine.thread.run(engine.load)

    async def aclose(self) -> None:
        """Let go of the model; the next call loads it again."""
        with _engines.lock:
            engine = _engines.value.pop(self.spec, None)
        if engine is not None:
            engine.close()

    async def _ask(self, question: Any) -> Any:
        return await asyncio.wrap_future(self._engine().ask(question))

    def _provenance(self, began: float, read: int, written: int) -> Provenance:
        usage = Usage(input_tokens=read, output_tokens=written, cost_usd=0.0)
        took = time.perf_counter() - began
        return Provenance(source="live", model=self.model, usage=usage, latency_s=took, attempts=1)


class LocalChatModel(_LocalModel):
    """A language model of transformers as a judge, in this process.

    ``model``: a folder, or a name that transformers knows. Calls that come meanwhile are answered
    in batches of ``batch_size``, in a thread of their own; models that name the same one share it.
    ``device`` (the GPU of ``LOCAL_RANK``, else the CPU), ``dtype`` (bfloat16 on a GPU, float32 on
    a CPU), ``max_length`` (the model's own). Sampling: ``temperature`` (0), ``top_p``,
    ``max_tokens`` (512); no ``seed``, since draws depend on the batch.
    ``extra_body = {"chat_template_kwargs": {…}}`` goes to the chat template.

    Choice lists and log-probabilities are honoured (over the choices where there are some, at
    temperature 1, 20 a token); schemas are not, so graders put them into words. A prompt that does
    not fit is ``too_long``, never cut. Needs torch and transformers with the first call.
    """

    task = "chat"
    features = frozenset({"choices", "logprobs"})

    async def answer(self, call: ChatCall) -> Reply:
        """The generated reply; ``ConfigError`` for a model that cannot be loaded."""
        began = time.perf_counter()
        question = local_inference.ChatQuestion(
            call.messages,
            _parse_sampling(call.sampling),
            tuple(call.choices or ()),
            call.logprobs,
        )
        said: local_inference.ChatAnswer = await self._ask(question)
        text, reasoning = split_thinking(said.text)
        finish = "stop" if said.ended else "length"
        source = self._provenance(began, said.input_tokens, said.output_tokens)
        return Reply(
            text=text,
            reasoning=reasoning,
            finish_reason=finish,
            logprobs=said.logprobs,
            usage=source.usage,
            model=self.model,
            ignored=find_ignored_features(call, text, finish, said.logprobs, source.usage),
            provenance=source,
        )


class LocalScalarModel(_LocalModel):
    """A scalar judge of transformers (a reward model): one number per conversation.

    A sequence classifier with one output. It reads a conversation that ends with the assistant's
    turn, as its chat template writes it (without one: prompt and completion as two texts), and its
    raw output is the score. Longer ones than ``max_length`` lose tokens from the beginning, which
    is counted. Options as those of :class:`LocalChatModel`.

    The grader type ``scalar`` asks it by :meth:`achat`, whose reply is the JSON of ``score``,
    ``tokens`` and ``truncated`` with the finish reason ``score``; :meth:`ascore` is the short form.
    """

    task = "score"

    async def answer(self, call: ChatCall) -> Reply:
        """The score of a conversation; ``ConfigError`` when it is asked a question instead."""
        check_scored_conversation(call)
        began = time.perf_counter()
        reading: ScalarReading = await self._ask(call.messages)
        source = self._provenance(began, reading.tokens, 0)
        return Reply(
            text=msgspec.json.encode(reading).decode(),
            finish_reason="score",
            usage=source.usage,
            model=self.model,
            provenance=source,
        )

    async def ascore(self, prompt: str, completion: str) -> float:
        """The score of one completion, raw."""
        turns = [("user", prompt), ("assistant", completion)]
        messages = [{"role": role, "content": content} for role, content in turns]
        found: ScalarReading = await self._ask(messages)
        return found.score


def _parse_sampling(sampling: Fields) -> LocalSampling:
    """What is given of ``sampling``; ``GradingFailure`` for what is not honoured."""
    given = {name: value for name, value in sampling.items() if value is not None}
    try:
        return msgspec.convert(given, LocalSampling)
    except msgspec.ValidationError as error:
        raise GradingFailure(
            ErrorKind.UNSUPPORTED, f"sampling: a local judge does not support it: {error}"
        ) from None
