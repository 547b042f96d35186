"""Questions on long documents: what part of a document a question needs, and how long until it is asked again."""

from dataclasses import dataclass
from typing import Any

from harness.traffic.lengths import fitted, length_of, stratified
from harness.traffic.parameters import need, unknown
from harness.traffic.segments import Fresh, Part, Session, Shared, Turn
from harness.traffic.workloads import Drawn, Wanted, workload

ORDERS = ("round-robin", "shuffled", "grouped")
REACHES = ("start", "far", "mixed")

START_SHARE = 8
"""A document's start is its first part in so many."""


@dataclass(frozen=True)
class DocumentQa:
    """Documents, the questions on them, and their order.

    A request's prompt is a document, a passage quoted from it, and a question's own words. `reach` says where the
    quoted passage lies and nothing else: for one seed, the same documents, lengths and order come with every `reach`.
    So a load with ``start`` and its twin with ``far`` make a server compute and hold exactly the same; what they differ
    in is which part of the cache the question attends to. An engine that brings back only the blocks it takes to be
    needed (a cache that is offloaded, or selected from) reads the slow tier for ``far`` and not for ``start``: a tail
    latency that the twin has and the other hasn't comes from that reading, one that both have comes from elsewhere
    (queueing, batching, the client). With an engine that brings back everything the two must be equal.

    Attributes
    ----------
    documents : int
        Documents in turn, >= 1. When all their questions are asked, as many new ones come.
    questions_per_document : int
        Questions on each, >= 1. Without a second question nothing is reused.
    document_tokens, question_tokens, output_tokens : number or mapping
        Lengths (`lengths.py`) of a document, of a question's own words, and of the output.
    quote_tokens : int
        Length of the passage that a question quotes from its document, >= 1.
    order : str
        How far apart the questions on a document are. ``round-robin``: all other documents come in between;
        ``grouped``: none does; ``shuffled``: at random.
    reach : str
        Where the quoted passage lies. ``start``: within the document's first eighth; ``far``: anywhere behind it;
        ``mixed``: half the one, half the other.
    """

    documents: int = 8
    questions_per_document: int = 4
    document_tokens: Any = 4096
    question_tokens: Any = 32
    output_tokens: Any = 64
    quote_tokens: int = 32
    order: str = "round-robin"
    reach: str = "start"

    def __post_init__(self) -> None:
        for key in ("documents", "questions_per_document", "quote_tokens"):
            need(getattr(self, key) >= 1, f"{key}: {getattr(self, key)} must be >= 1")
        for key, allowed in (("order", ORDERS), ("reach", REACHES)):
            need(getattr(self, key) in allowed, f"{key}: {unknown(getattr(self, key), allowed)}")
        for key in ("document_tokens", "question_tokens", "output_tokens"):
            length_of(getattr(self, key), key)
        shortest, least = length_of(self.document_tokens, "document_tokens").at(0.0), 2 * START_SHARE
        need(
            shortest >= least * self.quote_tokens,
            f"quote_tokens: {self.quote_tokens} must be at most 1/{least} of the shortest document ({shortest})",
        )


@workload("document-qa", DocumentQa)
def document_qa(what: DocumentQa, wanted: Wanted) -> Drawn:
    """Single requests: document, quoted passage, question."""
    rng, context = wanted.rng, wanted.context_tokens
    keys = ("document_tokens", "question_tokens", "output_tokens")
    room = f"context_tokens ({context}) less quote_tokens ({what.quote_tokens})"
    lengths_of = {key: length_of(getattr(what, key), key) for key in keys}
    document, question, output = fitted(lengths_of, context - what.quote_tokens, room)
    asked = _order(what, wanted)
    lengths = stratified(rng, max(asked) + 1, document.at)
    questions = stratified(rng, wanted.requests, question.at)
    outputs = stratified(rng, wanted.requests, output.at)
    # Both are drawn whatever the reach, so that everything else is equal for every reach.
    levels = stratified(rng, wanted.requests, lambda level: level)
    goes_far = stratified(rng, wanted.requests, lambda level: level >= 0.5)
    texts = {one: _document(one, lengths[one], what.quote_tokens) for one in dict.fromkeys(asked)}
    sessions = []
    for one, own, out, level, far in zip(asked, questions, outputs, levels, goes_far, strict=True):
        passages = lengths[one] // what.quote_tokens
        starts = passages // START_SHARE
        if what.reach == "far" or (what.reach == "mixed" and far):
            quoted = starts + int(level * (passages - starts))
        else:
            quoted = int(level * starts)
        parts = (*texts[one], _passage(one, quoted, what.quote_tokens), Fresh(own))
        sessions.append(Session((Turn(lengths[one] + what.quote_tokens + own, out, parts),)))
    return Drawn(sessions)


def _order(what: DocumentQa, wanted: Wanted) -> list[int]:
    """The document of each request."""
    asked: list[int] = []
    first = 0
    while len(asked) < wanted.requests:
        round_of = [first + i for _ in range(what.questions_per_document) for i in range(what.documents)]
        if what.order == "grouped":
            round_of.sort()
        elif what.order == "shuffled":
            wanted.rng.shuffle(round_of)
        asked += round_of
        first += what.documents
    return asked[: wanted.requests]


def _document(one: int, tokens: int, passage_tokens: int) -> tuple[Part, ...]:
    """A document as its passages, so that any of them can be quoted, and what is left over."""
    whole, rest = divmod(tokens, passage_tokens)
    passages = tuple(_passage(one, index, passage_tokens) for index in range(whole))
    return (*passages, Shared(f"document-{one}-rest", rest)) if rest else passages


def _passage(one: int, index: int, tokens: int) -> Shared:
    return Shared(f"document-{one}-passage-{index}", tokens)
