"""Which route of a server gives the scores of a scalar judge, and whether they are raw outputs.

Found out by a few small calls. A server that applies a softmax to a single output gives 1.0 to
everything; one that applies a sigmoid gives an order, but no logits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges.base import Reply, RouteName
from adjudge.judges.wire.classifier import ROUTES, ClassifierRoute, find_form

_log = logging.getLogger("adjudge")

_NO_ROUTE = (400, 404, 405, 415, 422, 501)
"""What a server answers where it has not this route, or reads another form of request there."""

_SAME = 0.01
"""Scores of one conversation that differ by less may differ by rounding in a batch."""

PROBE_CONVERSATIONS = (
    ("What is the capital of France?", "The capital of France is Paris."),
    ("Name three colours.", "zq zq 77 no no no"),
)
"""Two conversations that no reward model gives the same output."""

ProbeMessages = list[dict[str, str]]
ProbeFunction = Callable[[ProbeMessages, ClassifierRoute, bool], Awaitable[Reply]]
"""Asks for one conversation's score by a route: before its activation, or after it (``False``)."""


def probe_messages(prompt: str, response: str) -> ProbeMessages:
    """A conversation of two turns."""
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]


class ScalarRoute(msgspec.Struct, frozen=True):
    """What was found out about a server.

    ``is_raw``: its numbers are outputs before any activation; ``None``: that cannot be told.
    ``template``: who applies the chat template, ``server`` or ``here``; ``none``: a pair of texts
    is sent. ``scores``: of two very different conversations. ``probes``: calls that this took.
    """

    route: RouteName
    server: str
    template: str
    is_raw: bool | None
    scores: tuple[float, ...]
    probes: int

    @property
    def facts(self) -> dict[str, str]:
        """For summaries."""
        return {
            "route": f"{ROUTES[self.route].path} ({self.server})",
            "output": "raw outputs" if self.is_raw else "not known to be raw outputs",
            "template": self.template,
            "probes": str(self.probes),
        }


class RouteSearch:
    """One search. ``url`` is for messages; ``has_template``: conversations go out as token ids."""

    def __init__(self, ask: ProbeFunction, url: str, *, has_template: bool) -> None:
        self._ask, self._url, self._has_template = ask, url, has_template
        self._probes = 0

    async def run(self, chosen: RouteName | None = None) -> ScalarRoute:
        """The route ``chosen``, else the first that answers with a score.

        Raises ``ConfigError`` where no route gives one number a conversation, or the numbers
        cannot be raw outputs; ``GradingFailure`` where the server cannot be asked.
        """
        problems = []
        for route in self._candidates(chosen):
            try:
                scores = await self._probe(route)
            except GradingFailure as failure:
                if "outputs" in failure.metadata:
                    raise ConfigError(
                        f"model: {failure}. Serve a model with one output (num_labels = 1)."
                    ) from None
                if not _is_elsewhere(failure):
                    raise
                problems.append(f"{route.path} ({route.server}): {failure}")
            else:
                return await self._examine(route, scores)
        remedy = (
            "Start it with a reward model (vLLM: --runner pooling)."
            if self._has_template
            else "Start it with a reward model (vLLM: --runner pooling), and set tokenizer to the "
            "model's folder for SGLang (its /classify takes token ids)."
        )
        raise ConfigError(
            f"base_url: {self._url} has no route for a scalar judge ({'; '.join(problems)}). "
            f"{remedy}"
        )

    def _candidates(self, chosen: RouteName | None) -> list[ClassifierRoute]:
        if chosen is not None:
            return [ROUTES[chosen]]
        if self._has_template:  # a pair of texts would leave the template out without a word
            return [route for route in ROUTES.values() if "tokens" in route.forms]
        return [route for route in ROUTES.values() if find_form(route, has_template=False)]

    async def _probe(self, route: ClassifierRoute, *, raw: bool = True) -> tuple[float, ...]:
        """The scores of :data:`PROBE_CONVERSATIONS`."""
        scores = []
        for prompt, response in PROBE_CONVERSATIONS:
            self._probes += 1
            reply = await self._ask(probe_messages(prompt, response), route, raw)
            scores.append(float(msgspec.json.decode(reply.text)["score"]))
        return tuple(scores)

    async def _examine(self, route: ClassifierRoute, scores: tuple[float, ...]) -> ScalarRoute:
        """Whether ``scores`` are raw outputs."""
        is_raw = not _may_be_probabilities(scores)
        if not is_raw and route.activation is not None:
            # Raw outputs may lie between 0 and 1 by chance: does the field change anything?
            active = await self._probe(route, raw=False)
            pairs = zip(scores, active, strict=True)
            is_raw = any(abs(one - other) > _SAME for one, other in pairs)
        if not is_raw and len(set(scores)) == 1:
            raise ConfigError(
                f"base_url: {self._url} gives every conversation the score {scores[0]:g}: "
                f"{route.path} of {route.server} seems to answer with a softmax over one output. "
                f"{_advise_raw(route)}"
            )
        if not is_raw:
            _log.warning(
                "%s: the scores %s lie between 0 and 1, so they may be probabilities and no raw "
                "outputs. %s",
                self._url,
                " and ".join(f"{score:.4g}" for score in scores),
                _advise_raw(route),
            )
        form = find_form(route, has_template=self._has_template)
        template = {"tokens": "here", "messages": "server"}.get(form or "", "none")
        if route.name == "judge":
            template = "server"
        return ScalarRoute(route.name, route.server, template, is_raw or None, scores, self._probes)


def _is_elsewhere(failure: GradingFailure) -> bool:
    """Whether another route may answer: this one is not there, or wants another request."""
    status = failure.metadata.get("status")
    is_malformed = failure.kind is ErrorKind.SERVER_ERROR and status == 200
    return status in _NO_ROUTE or is_malformed


def _may_be_probabilities(scores: Sequence[float]) -> bool:
    return all(0.0 <= score <= 1.0 for score in scores) or len(set(scores)) == 1


def _advise_raw(route: ClassifierRoute) -> str:
    if route.name == "judge":
        return "Its spec needs one grader of type 'scalar' and [reward] normalise = false."
    if route.server == "vLLM":
        return "Use a version of vLLM that knows the request's field use_activation."
    return (
        f"Serve a model whose outputs {route.server} leaves as they are, or use another server: "
        "vLLM gives raw outputs."
    )
