"""How far one forced-decode record lies from another: NLL, top-1 agreement, KL divergence. Pure functions of JSON.

A record is the content of `output_check.json`: one text (schema version 1) or several. An engine returns only the
`top_k` most probable tokens of a position; what is left of the probability is spread evenly over the rest of the
vocabulary, here and everywhere in KVMark. All values are in nats.
"""

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Any

Record = dict[str, Any]
Text = dict[str, Any]
"""The part of a record that is about one text; a record of version 1 is one itself."""

_LEAST_REMAINDER = 1e-9
"""Least probability left to the tokens outside the top k: rounding can eat up all of it."""


@dataclass(frozen=True)
class Fidelity:
    """One record against a reference.

    Attributes
    ----------
    positions : int
        Positions at which both records can be read.
    nll : float or None
        Mean negative log-likelihood of the text's own tokens under the record.
    nll_delta : float or None
        The same less the reference's, on the same positions.
    top1_agreement : float or None
        Share of positions with the same most probable token.
    kl : float or None
        Mean KL divergence of the record from the reference over the tokens that either names, plus one bin for all
        others.
    unusable : int
        Positions that the record lacks or that hold no numbers.
    echo_nll_delta : float or None
        Difference of the echoed text's NLL, where both have one.
    shifts : tuple of Shift
        What the means are of.
    """

    positions: int
    nll: float | None
    nll_delta: float | None
    top1_agreement: float | None
    kl: float | None
    unusable: int
    echo_nll_delta: float | None
    shifts: "tuple[Shift, ...]" = ()


@dataclass(frozen=True)
class Shift:
    """One prediction against the reference's at the same place: fields as in `Fidelity`, of one position.

    `run` is the first of the positions that follow each other up to this one: neighbours share their context, and are
    one cluster. `same_top` is 1 where the most probable token is the same, else 0; a mean over launches lies between.
    """

    text_sha256: str
    position: int
    run: int
    nll: float
    reference_nll: float
    same_top: float
    kl: float

    @property
    def nll_delta(self) -> float:
        return self.nll - self.reference_nll


def texts_of(record: Record) -> list[Text]:
    """The texts of a record of either version."""
    texts: list[Text] = record.get("texts", [record])
    return texts


def same_texts(a: Record, b: Record) -> bool:
    """Whether two records are of the same texts, and can be compared."""
    shas = [[text.get("text_sha256") for text in texts_of(record)] for record in (a, b)]
    return shas[0] == shas[1] and bool(shas[0])


def distribution(record: Text, index: int) -> dict[int, float] | None:
    """Probabilities of the top-k tokens at one position; None where the engine gave no usable numbers."""
    ids, logprobs = record["top_token_ids"][index], record["top_logprobs"][index]
    if not ids or len(ids) != len(logprobs) or any(value is None or not math.isfinite(value) for value in logprobs):
        return None
    return {token: math.exp(value) for token, value in zip(ids, logprobs, strict=True)}


def _outside(top: dict[int, float], vocab: int) -> float:
    """Probability of one token outside the top k."""
    return max(1.0 - sum(top.values()), _LEAST_REMAINDER) / max(vocab - len(top), 1)


def token_nlls(record: Text) -> list[float | None]:
    """Negative log-likelihood of the text's own next token at each position; None where it can't be told."""
    nlls: list[float | None] = []
    for index, token in enumerate(record["next_token_ids"]):
        top = distribution(record, index)
        nlls.append(None if top is None else -math.log(max(top.get(token, 0.0), _outside(top, record["vocab"]))))
    return nlls


def mean_nll(record: Record) -> float | None:
    """Mean NLL over the usable positions of all texts."""
    usable = [nll for text in texts_of(record) for nll in token_nlls(text) if nll is not None]
    return fmean(usable) if usable else None


def kl_divergence(reference: dict[int, float], other: dict[int, float], vocab: int) -> float:
    """KL(reference ‖ other) over the union of both top-k sets, and one bin for the rest of the vocabulary."""
    tokens = reference.keys() | other.keys()
    p_outside, q_outside = _outside(reference, vocab), _outside(other, vocab)
    p = [max(reference.get(token, 0.0), p_outside if token not in reference else 0.0) for token in tokens]
    q = [max(other.get(token, 0.0), q_outside if token not in other else 0.0) for token in tokens]
    p.append(max(1.0 - sum(p), _LEAST_REMAINDER))
    q.append(max(1.0 - sum(q), _LEAST_REMAINDER))
    p_sum, q_sum = sum(p), sum(q)
    pairs = zip(p, q, strict=True)
    divergence = sum(a / p_sum * math.log((a / p_sum) / (b / q_sum)) for a, b in pairs if a > 0.0 and b > 0.0)
    return max(divergence, 0.0)


def shifts(record: Record, reference: Record) -> tuple[list[Shift], list[int]]:
    """Shift at each position that both records have, and the positions that the record lacks or that hold no numbers.

    A reference may have positions that weren't asked of the record, and the other way round.
    """
    if not same_texts(record, reference):
        raise ValueError("the records can't be compared: they are of different texts (text_sha256)")
    found: list[Shift] = []
    unusable: list[int] = []
    for mine, theirs in zip(texts_of(record), texts_of(reference), strict=True):
        at = {position: index for index, position in enumerate(theirs["positions"])}
        nlls, reference_nlls = token_nlls(mine), token_nlls(theirs)
        run = 0
        for index, position in enumerate(mine["positions"]):
            run = run if index and position == mine["positions"][index - 1] + 1 else position
            if position not in at:
                continue
            nll, a = nlls[index], distribution(mine, index)
            reference_nll, b = reference_nlls[at[position]], distribution(theirs, at[position])
            if a is None or nll is None:
                unusable.append(position)
            elif b is not None and reference_nll is not None:
                same = float(mine["top_token_ids"][index][0] == theirs["top_token_ids"][at[position]][0])
                kl = kl_divergence(b, a, mine["vocab"])
                found.append(Shift(mine["text_sha256"], position, run, nll, reference_nll, same, kl))
    return found, unusable


def compare(record: Record, reference: Record, from_position: int = 0) -> Fidelity:
    """Hold a record against a reference of the same texts; `from_position` leaves out earlier positions."""
    every, missing = shifts(record, reference)
    found = [shift for shift in every if shift.position >= from_position]
    mean_shift = fmean(shift.nll_delta for shift in found) if found else None
    echo, reference_echo = record.get("echo"), reference.get("echo")
    return Fidelity(
        positions=len(found),
        nll=fmean(shift.nll for shift in found) if found else None,
        nll_delta=mean_shift,
        top1_agreement=fmean(shift.same_top for shift in found) if found else None,
        kl=fmean(shift.kl for shift in found) if found else None,
        unusable=sum(position >= from_position for position in missing),
        echo_nll_delta=echo["nll"] - reference_echo["nll"] if echo and reference_echo else None,
        shifts=tuple(found),
    )
