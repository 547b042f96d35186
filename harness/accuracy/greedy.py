"""Greedy continuations: what the engine goes on to say after prefixes of the forced-decode texts.

Every token is chosen out of the KV of all tokens before it, its own too: a small fault adds up here, and the place
where a continuation leaves the 16-bit launch's tells how soon.
"""

from typing import Any

from harness.accuracy.completions import BadAnswer, first_choice
from harness.accuracy.fidelity_options import FidelityOptions
from harness.accuracy.forced_texts import forced_texts, lengths
from harness.accuracy.passages import text_sha256
from harness.accuracy.patient_client import PatientClient
from harness.backends.interface import Backend
from harness.model import Model


def size(options: FidelityOptions, context_tokens: int, *, prefix_reuse: bool = True) -> tuple[int, int, int]:
    """Tokens to prefill, tokens to generate, and requests.

    With prefix reuse the deep text is still cached; the others' longest prompts are where the engine keeps one only.
    """
    places = _places(options, context_tokens)
    read = [length for _, length in places]
    if prefix_reuse:
        read = [max(n for t, n in places if t == text) for text in {text for text, _ in places} - {0}]
    return sum(read), options.greedy_tokens * len(places), len(places)


def take(
    backend: Backend,
    base_url: str,
    served_name: str,
    model: Model,
    *,
    context_tokens: int,
    seed: int,
    options: FidelityOptions,
    timeout_s: float = 300.0,
) -> dict[str, Any] | None:
    """Continue each prompt greedily; `greedy` of `fidelity.json`, None where no prompts are asked for.

    `seed` is that of the output check, whose texts these prompts begin. Bad answers never raise: the prompt's
    `error` says what happened.
    """
    places = _places(options, context_tokens)
    if not places:
        return None
    texts = forced_texts(model, options, context_tokens, seed=seed)
    client = PatientClient(backend, base_url, served_name, timeout_s)
    prompts = []
    for text, length in places:
        ids = texts[text].ids[:length]
        answer = continued(client, ids, options.greedy_tokens)
        prompts.append({"text_index": text, "position": length, "prompt_sha256": text_sha256(ids), **answer})
    return {"tokens": options.greedy_tokens, "prompts": prompts}


def continued(client: PatientClient, ids: list[int], tokens: int) -> dict[str, Any]:
    """The continuation of one prompt: `token_ids` where the engine names them, else `text`, or `error`."""
    empty = {"token_ids": None, "text": None, "error": None}
    try:
        body = {"prompt": ids, **client.backend.greedy_extras(tokens)}
        return {**empty, **client.ask(body, lambda answer: _read(client.backend, answer))}
    except BadAnswer as error:
        return {**empty, "error": str(error)}


def _read(backend: Backend, answer: dict[str, Any]) -> dict[str, Any]:
    if (found := backend.output_token_ids(answer)) is not None:
        return {"token_ids": found}
    text = first_choice(answer).get("text")
    if not isinstance(text, str):
        raise BadAnswer("neither token ids nor text in the answer")
    return {"text": text}


def _places(options: FidelityOptions, context_tokens: int) -> list[tuple[int, int]]:
    """Text and length of each prompt: from each text in turn, its latest first, evenly back to its early prefixes."""
    room = context_tokens - options.greedy_tokens
    by_text = [[one for one in found if one <= room] for found in lengths(options, context_tokens)]
    of_each = [options.greedy_prompts // options.texts] * options.texts
    for text in range(options.greedy_prompts % options.texts):
        of_each[text] += 1
    places = []
    for text, (positions, count) in enumerate(zip(by_text, of_each, strict=True)):
        last = len(positions) - 1
        places += sorted({(text, positions[last - last * i // count]) for i in range(count) if positions}, reverse=True)
    return places
