"""Generated answers held against other texts: BLEU-4 by sacrebleu, ROUGE-L by rouge-score.

BLEU: Papineni et al. (2002), corpus level, as sacrebleu computes it (Post, 2018, arXiv:1804.08771). ROUGE-L: Lin
(2004), mean F-measure. Intervals: delete-one-document jackknife with t at documents − 1, for both are means or ratios
of sums over documents, and answers to one document go together.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.bleu import BLEU

from bench.analysis.load import LaunchRecord, TaskRecord
from bench.analysis.paired import quantile
from bench.analysis.pairing import Answer, answers, asked_differently, not_measured, scored
from bench.analysis.result import DeploymentResult, TextAgreement
from harness.accuracy.kinds import kinds

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\uac00-\ud7af"  # Thai to Khmer, kana, hangul
_TOKEN = re.compile(rf"[{_HAN}{_UNSPACED}]|[^\W_{_HAN}{_UNSPACED}]+")
_FEW = 0.1
"""Share of the references' letters from which on a script decides how the texts are cut into tokens."""


class Words:
    """Words in lower case as rouge-score cuts them, of any alphabet; scripts without spaces by character."""

    def tokenize(self, text: str) -> list[str]:
        return _TOKEN.findall(text.lower())


@dataclass(frozen=True)
class Texts:
    """Answers, what they are held against, and the document of each."""

    mine: Sequence[str]
    references: Sequence[str]
    documents: Sequence[str]


def tokenizer(references: Sequence[str]) -> str:
    """sacrebleu's tokenizer for these texts: 13a, zh where they are Chinese, char for other scripts without spaces."""
    text = "".join(references)
    letters = sum(map(str.isalpha, text)) or 1
    if len(re.findall(f"[{_UNSPACED}]", text)) >= _FEW * letters:
        return "char"
    return "zh" if len(re.findall(f"[{_HAN}]", text)) >= _FEW * letters else "13a"


def text_agreements(
    tasks: Iterable[str], deployments: Sequence[DeploymentResult], launches: Mapping[str, Sequence[LaunchRecord]]
) -> Iterable[TextAgreement]:
    """Every deployment's generated answers against the task's references and against its baselines' answers."""
    common = next((d for d in deployments if d.common_baseline), None)
    for task in tasks:
        for one in (d for d in deployments if d.accuracy.get(task) and d.accuracy[task].score is not None):
            mine = {
                block: record
                for block, record in scored(launches[one.id], task).items()
                if record.facts.get("mode") == "generation"
            }
            if mine and _has_references(mine.values()):
                yield _agreement(task, one.id, "references", _against_references(mine))
            base = next(
                (d for d in deployments if d.engine_baseline and (d.backend, d.model) == (one.backend, one.model)), None
            )
            found: dict[str, TextAgreement] = {}
            for against, reference in (("engine", base), ("common", common)):
                if not mine or reference is None or reference.id == one.id or not_measured(one, reference, task):
                    continue
                theirs = scored(launches[reference.id], task)
                texts = _against_answers(mine, theirs)
                if asked_differently(mine, theirs) or not texts.mine:
                    continue
                if reference.id not in found:
                    found[reference.id] = _agreement(task, one.id, against, texts)
                yield replace(found[reference.id], against=against)


@dataclass(frozen=True)
class Figures:
    """The fields of `TextAgreement` of the same names."""

    bleu4: float | None
    bleu4_low: float | None
    bleu4_high: float | None
    rouge_l: float
    rouge_l_low: float | None
    rouge_l_high: float | None
    method: str


def agreement(texts: Texts) -> Figures:
    """BLEU-4 and ROUGE-L of texts against their references, 0 to 100."""
    way = tokenizer(texts.references)
    metric = BLEU(tokenize=way)
    corpus = metric.corpus_score(list(texts.mine), [list(texts.references)])
    # `effective_order` changes no count, and sacrebleu warns of single sentences without it.
    single = BLEU(tokenize=way, effective_order=True)
    counts = np.array([_counts(single, mine, ref) for mine, ref in zip(texts.mine, texts.references, strict=True)])
    rouge = RougeScorer(["rougeL"], tokenizer=Words())
    f_measure = np.array(
        [
            1.0 if mine == ref else rouge.score(ref, mine)["rougeL"].fmeasure
            for mine, ref in zip(texts.mine, texts.references, strict=True)
        ]
    )
    defined = any(single.sentence_score(ref, [ref]).totals[3] for ref in texts.references)
    documents = np.unique(np.array(texts.documents), return_inverse=True)[1]
    bleu_low, bleu_high = _jackknife(counts, documents, _bleu) if defined else (None, None)
    rouge_low, rouge_high = _jackknife(
        np.column_stack([100 * f_measure, np.ones(len(f_measure))]), documents, lambda sums: float(sums[0] / sums[1])
    )
    how = f"jackknife over {documents.max() + 1} documents" if rouge_low is not None else "no interval"
    return Figures(
        bleu4=float(corpus.score) if defined else None,
        bleu4_low=bleu_low,
        bleu4_high=bleu_high,
        rouge_l=100 * float(f_measure.mean()),
        rouge_l_low=rouge_low,
        rouge_l_high=rouge_high,
        method=f"sacrebleu {metric.get_signature()}; rouge-score rougeL F, {how}",
    )


def _agreement(task: str, deployment: str, against: str, texts: Texts) -> TextAgreement:
    same = [mine == ref for mine, ref in zip(texts.mine, texts.references, strict=True)]
    figures = asdict(agreement(texts))
    return TextAgreement(task, deployment, against, n=len(same), identical=sum(same) / len(same), **figures)


def _counts(metric: BLEU, mine: str, reference: str) -> list[float]:
    score = metric.sentence_score(mine, [reference])
    return [*score.counts, *score.totals, score.sys_len, score.ref_len]


def _bleu(sums: np.ndarray) -> float:
    counts = [round(value) for value in sums]
    score = BLEU.compute_bleu(counts[:4], counts[4:8], counts[8], counts[9], smooth_method="exp")
    return float(score.score)


def _jackknife(
    rows: np.ndarray, documents: np.ndarray, statistic: Callable[[np.ndarray], float]
) -> tuple[float, float] | tuple[None, None]:
    """Interval of a statistic of the rows' sum; none where there is one document, or all say the same."""
    clusters = int(documents.max()) + 1
    sums = np.zeros((clusters, rows.shape[1]))
    np.add.at(sums, documents, rows)
    total = sums.sum(0)
    left_out = np.array([statistic(total - one) for one in sums]) if clusters > 1 else np.zeros(1)
    error = float(np.sqrt((clusters - 1) / clusters * ((left_out - left_out.mean()) ** 2).sum()))
    if error < 1e-9:
        return None, None
    value, half = statistic(total), quantile(clusters) * error
    return max(0.0, value - half), min(100.0, value + half)


def _has_references(records: Iterable[TaskRecord]) -> bool:
    """Whether the task's right answers are texts of several words: a fact of its kind."""
    known = kinds()
    return all((kind := known.get(str(record.facts.get("kind")))) and kind.text_references for record in records)


def _against_references(mine: Mapping[int, TaskRecord]) -> Texts:
    found = [one for block in sorted(mine) for one in answers(mine[block]).values()]
    return _texts([(one, one.target) for one in found])


def _against_answers(mine: Mapping[int, TaskRecord], theirs: Mapping[int, TaskRecord]) -> Texts:
    found: list[tuple[Answer, str]] = []
    for block in sorted(mine.keys() & theirs.keys()):
        references = answers(theirs[block])
        for item, one in answers(mine[block]).items():
            # An error on the baseline's side is no text to be held against.
            if item in references and (text := references[item].text) is not None:
                found.append((one, text))
    return _texts(found)


def _texts(pairs: Sequence[tuple[Answer, str]]) -> Texts:
    """A candidate's missing answer counts as an empty one."""
    return Texts(
        [(one.text or "").strip() for one, _ in pairs],
        [reference.strip() for _, reference in pairs],
        [one.document for one, _ in pairs],
    )
