"""Questions out of texts: what they promise, on real text and on texts that go wrong."""

from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from tokenizers import Tokenizer

from harness.accuracy.builder import Wanted, build, read_texts
from harness.accuracy.builder import texts as texts_module
from harness.accuracy.builder.cloze import GAP, gaps, sentences
from harness.accuracy.text_scores import contains
from harness.errors import ConfigError
from harness.model import Model

REFERENCE = "\n\n".join(topics[name] for name in sorted(topics))
CHINESE = "".join(
    f"第{n}号仓库位于城市的北面。{n}号的建筑由工程师们在{1900 + n}年建成，当时的名字是《第{n * 7}书院》。"
    f"后来{n}号的编号改成了{chr(65 + n % 26)}{n * 31}x，人们仍然记得它。很多人每天都来这里参观。"
    for n in range(1, 60)
)


@pytest.fixture(scope="session")
def tokenizer(model: Model) -> Tokenizer:
    return Tokenizer.from_file(f"{model.path}/tokenizer.json")


def test_questions_have_their_promised_shape_on_real_text(tokenizer: Tokenizer) -> None:
    wanted = Wanted(context_tokens=1500, documents=3, questions=5, seed=1)
    built = build(REFERENCE, tokenizer, wanted)
    assert (len(built.rows), built.missing) == (15, [])
    documents = {row["document_id"]: row["document"] for row in built.rows if "document" in row}
    assert len(documents) == 3 and len(set(documents.values())) == 3
    for index, row in enumerate(built.rows):
        document = documents[row["document_id"]]
        assert document.count(row["answer"]) == 1
        assert document in REFERENCE
        flat = " ".join(document.split())
        assert " ".join(row["prompt"].split()) in flat
        assert row["question"].count(GAP) == 2 and row["answer"] not in row["prompt"]
        assert int(row["depth"] * 5) == index % 5, "one question to each fifth"
        sent = tokenizer.encode(f"{document}\n\n{row['prompt']}", add_special_tokens=False)
        assert 1000 < len(sent.ids) == row["context_tokens"] <= 1500
        rest = document[document.index(row["answer"]) :]
        assert contains(rest, row["answer"]) == 1.0, "a model that copies what follows is right"


def test_documents_do_not_overlap(tokenizer: Tokenizer) -> None:
    text = " ".join(f"The line before {n} is followed by the value V{n * 7}q." for n in range(4000))
    built = build(text, tokenizer, Wanted(context_tokens=800, documents=1000, questions=1))
    documents = [row["document"] for row in built.rows]
    places = sorted((text.index(one), len(one)) for one in documents)
    assert len(places) > 50
    assert all(at + length <= later for (at, length), (later, _) in pairwise(places))
    assert built.stretches >= len(places)
    assert f"the texts make {built.stretches} documents" in built.missing[0]


def test_equal_seeds_give_equal_questions_and_others_give_others(tokenizer: Tokenizer) -> None:
    one, same, other = (build(REFERENCE, tokenizer, Wanted(1000, 2, 4, seed)).rows for seed in (1, 1, 2))
    assert one == same != other


def test_chinese_text_gives_numbers_dates_and_titles(tokenizer: Tokenizer) -> None:
    built = build(CHINESE, tokenizer, Wanted(context_tokens=1500, documents=2, questions=3))
    assert len(built.rows) == 6
    for row in built.rows:
        assert CHINESE.count(row["answer"]) >= 1 and any(one.isdigit() for one in row["answer"])
        assert 0 < len(row["prompt"]) < 80


def test_text_without_distinctive_words_says_so(tokenizer: Tokenizer) -> None:
    built = build("The cat sat on the mat and then it went away again. " * 300, tokenizer, Wanted(600, 2, 4))
    assert built.rows == []
    assert any("2 documents have none" in why for why in built.missing)
    half = "The cat sat on the mat and then it went away again. " * 40
    built = build(half + "In the end the cat was paid 4711 coins. " + half, tokenizer, Wanted(1000, 1, 4))
    assert [row["answer"] for row in built.rows] == ["4711"]
    assert any("3 of 4 parts" in why for why in built.missing)


def test_text_shorter_than_a_document_is_refused_with_its_length(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"^context_tokens: the texts have \d+ tokens, and a document of 1840 needs"):
        build("A short text.", tokenizer, Wanted(context_tokens=2000))


def test_text_without_sentences_is_cut_all_the_same(tokenizer: Tokenizer) -> None:
    built = build("x" * 100_000, tokenizer, Wanted(context_tokens=500, documents=2, questions=2))
    assert built.rows == [] and built.stretches > 2
    table = "\n".join(f"| row {n} | has the value | v{n * 37}q |" for n in range(2000))
    assert build(table, tokenizer, Wanted(context_tokens=500, documents=2, questions=2)).rows


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("The engine was finished in the year 1843 by her own hand.", ["1843"]),
        ("The engine was finished on day 1843-12-10 by her own hand.", ["1843-12-10"]),
        ("All of the notes were written by Ada Lovelace that year.", ["Ada Lovelace"]),
        ("The value of the key cache_block_size is set at start.", ["cache_block_size"]),
        ("They paid about 1,234.50 for it, they say, and left.", ["1,234.50"]),
        ("Die Rechnung wurde am Abend in Köln beglichen und abgelegt.", ["Abend", "Köln"]),
        ("В конце года машина была доставлена в Москву по железной дороге.", ["Москву"]),
        ("这座很大的建筑是在1998年3月由工程师们建成的，位于城市的北面。", ["1998年3月"]),
        ("nothing here stands out at all, does it now, my friend.", []),
        ("1843 stands at the start of it, with nothing before.", []),
    ],
)
def test_distinctive_words_of_several_languages(text: str, answers: list[str]) -> None:
    assert [gap.answer for gap in gaps(text)] == answers


def test_what_stands_twice_is_no_gap() -> None:
    assert list(gaps("It was the year 1843 by their count. So 1843 was the year of it all, they said.")) == []


def test_a_sentence_ends_at_stops_blank_lines_and_list_items() -> None:
    text = "One is here. Two is\nthere! “Three?” Four\n\nFive\n- six\n* seven\n# Eight\n九。十！ e.g. this"
    found = [" ".join(text[start:end].split()) for start, end in sentences(text)]
    prose = ["One is here.", "Two is there!", "“Three?”", "Four", "Five"]
    assert found == [*prose, "- six", "* seven", "# Eight", "九。", "十！", "e.g. this"]


def test_a_folder_is_read_whatever_lies_in_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    files = {
        "b.txt": b"\xef\xbb\xbfsecond\r\nline\rend",
        "a.MD": "Erste – Übung".encode(),
        "sub/c.txt": "третий".encode("utf-16"),
        "binary.txt": b"\x00\x01\x02",
        "latin.txt": "Übung".encode("latin-1"),
        "empty.txt": b" \n",
        "other.pdf": b"%PDF",
        ".git/d.txt": b"hidden",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    found = read_texts(str(tmp_path))
    assert found.contents == {"a.MD": "Erste – Übung", "b.txt": "second\nline\nend", "sub/c.txt": "третий"}
    assert found.skipped == {
        "binary.txt": "no text in UTF-8 or UTF-16",
        "latin.txt": "no text in UTF-8 or UTF-16",
        "empty.txt": "empty",
    }
    assert found.stream == "Erste – Übung\n\nsecond\nline\nend\n\nтретий"


def test_a_huge_file_is_read_up_to_a_limit_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "MOST_BYTES", 3 * 2**20)
    (tmp_path / "a.txt").write_text("a line of text, Übung\n" * 400_000)
    (tmp_path / "b.txt").write_text("more\n")
    found = read_texts(str(tmp_path))
    assert 2.9 * 2**20 < len(found.stream.encode()) <= 3 * 2**20
    assert "limit of 3 MiB" in found.skipped["a.txt"]


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^from: .*nowhere is no folder"):
        read_texts(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"no \.txt, no \.md file"):
        read_texts(str(tmp_path))
    (tmp_path / "a.txt").write_bytes(b"\x00")
    with pytest.raises(ConfigError, match=r"a\.txt: no text in UTF-8"):
        read_texts(str(tmp_path))


@pytest.mark.parametrize("wrong", [{"context_tokens": 100}, {"documents": 0}, {"questions": 0}])
def test_sizes_that_make_no_sense_are_refused_by_key(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))}:"):
        Wanted(**wrong)
