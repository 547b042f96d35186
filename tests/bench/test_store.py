"""A run owns a folder; only a run of equal identity that nobody holds is resumed; nothing measured is lost."""

import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench import store
from harness.errors import DamagedFile, StorageError
from harness.files import read_json, write_json

IDENTITY = store.Identity("config", "code", "hardware", "engines")


def _run(results: Path, status: str, identity: store.Identity = IDENTITY) -> Path:
    with store.open_run(results, "smoke", identity) as (folder, _):
        store.write_manifest(folder, {"identity": asdict(identity), "status": status})
    return folder


@pytest.mark.parametrize("status", ["running", "incomplete"])
def test_an_unfinished_run_of_equal_identity_is_resumed(tmp_path: Path, status: str) -> None:
    first = _run(tmp_path, status)
    with store.open_run(tmp_path, "smoke", IDENTITY) as (folder, resumed):
        assert (folder, resumed) == (first, True)


@pytest.mark.parametrize("status", ["complete", "failed"])
def test_a_finished_run_is_never_written_to_again(tmp_path: Path, status: str) -> None:
    first = _run(tmp_path, status)
    with store.open_run(tmp_path, "smoke", IDENTITY) as (folder, resumed):
        assert folder != first
        assert not resumed


@pytest.mark.parametrize("key", sorted(asdict(IDENTITY)))
def test_any_difference_in_identity_starts_a_new_run(tmp_path: Path, key: str) -> None:
    first = _run(tmp_path, "incomplete")
    with store.open_run(tmp_path, "smoke", replace(IDENTITY, **{key: "other"})) as (folder, resumed):
        assert folder != first
        assert not resumed


def test_two_runs_at_the_same_time_never_share_a_folder(tmp_path: Path) -> None:
    with store.open_run(tmp_path, "smoke", IDENTITY) as (first, _):
        store.write_manifest(first, {"identity": asdict(IDENTITY), "status": "running"})
        with store.open_run(tmp_path, "smoke", IDENTITY) as (second, resumed):
            assert second != first
            assert not resumed


def test_an_interrupted_block_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    for expected in ("0.interrupted-1", "0.interrupted-2"):
        folder = store.block_folder(tmp_path, 0)
        folder.mkdir(parents=True)
        (folder / "cell.json").write_text("{}")
        aside = store.put_aside(folder)
        assert aside is not None
        assert aside.name == expected
        assert (aside / "cell.json").exists()
        assert not folder.exists()
    assert store.put_aside(store.block_folder(tmp_path, 0)) is None


def test_a_block_counts_only_when_its_record_says_complete(tmp_path: Path) -> None:
    folder = store.block_folder(tmp_path, 0)
    assert not store.block_complete(tmp_path, 0)
    write_json(folder / "block.json", {"status": "running"})
    assert not store.block_complete(tmp_path, 0)
    write_json(folder / "block.json", {"status": "complete"})
    assert store.block_complete(tmp_path, 0)


def test_derived_seeds_are_reproducible_and_differ() -> None:
    assert store.seed_of(1, "block", 0) == store.seed_of(1, "block", 0)
    assert len({store.seed_of(s, "block", b) for s in (1, 2) for b in range(50)}) == 100


def test_a_missing_parent_is_measured_by_the_disk_it_would_lie_on(tmp_path: Path) -> None:
    store.need_room(tmp_path / "not" / "yet" / "there", 1)
    with pytest.raises(StorageError, match="free"):
        store.need_room(tmp_path, 2**62)
    with pytest.raises(StorageError, match=r"set reports_dir=$"):
        store.need_room(tmp_path, 2**62, "reports_dir")


def test_a_failed_write_leaves_the_old_file_whole_and_no_litter(tmp_path: Path) -> None:
    file = tmp_path / "cell.json"
    write_json(file, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {"a": float("nan")})
    program = (
        "import resource, sys; from pathlib import Path; from harness.files import write_json\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_json(Path(sys.argv[1]), {'a': 'x' * 100000})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, env={**os.environ}
    )
    assert "StorageError" in done.stderr
    assert file.read_text() == '{\n  "a": 1\n}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["cell.json"]


def test_a_damaged_manifest_of_another_run_is_in_nobodys_way(tmp_path: Path) -> None:
    good = _run(tmp_path, "incomplete")
    bad = tmp_path / "smoke" / "9999-01-01T0000"
    bad.mkdir()
    (bad / "manifest.json").write_text('{"identity": ')
    with store.open_run(tmp_path, "smoke", IDENTITY) as (folder, resumed):
        assert (folder, resumed) == (good, True)


def test_a_damaged_block_record_counts_as_incomplete(tmp_path: Path) -> None:
    folder = store.block_folder(tmp_path, 0)
    folder.mkdir(parents=True)
    (folder / "block.json").write_text("{")
    assert not store.block_complete(tmp_path, 0)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "cell.json").write_text("{")
    with pytest.raises(DamagedFile, match=r"cell\.json is damaged"):
        read_json(tmp_path / "cell.json")
