"""Progress: a line a launch in a log, one display that is kept up to date on a terminal."""

import io

from rich.console import Console

from bench.progress import Progress, minutes


def test_a_log_gets_one_plain_line_a_launch() -> None:
    out = io.StringIO()
    with Progress(
        Console(file=out, width=120), 3, {(0, "vllm+m+baseline"): 60.0, (1, "vllm+m+baseline"): 60.0}
    ) as progress:
        progress.launch(0, "vllm+m+baseline")
        progress.step("load x")
        progress.requests(3, 12)
        progress.launch_done(0, "vllm+m+baseline", "measured")
    (line,) = out.getvalue().splitlines()
    assert line.startswith("block 1/3  vllm+m+baseline")
    assert "measured" in line
    assert "left" in line
    assert "\x1b" not in line


def test_a_terminal_shows_block_deployment_step_requests_and_time_left() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, width=160, force_terminal=True), 3, {(1, "a+b+c"): 300.0}) as progress:
        progress.launch(1, "a+b+c")
        progress.step("load long")
        progress.requests(3, 12)
        shown = str(progress._display())
    for word in ("block 2/3", "a+b+c", "load long", "3/12 requests", "left"):
        assert word in shown


def test_text_from_an_engine_is_never_taken_for_markup() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, width=200), 1) as progress:
        progress.say("failed: [bold]no[/] [/end]")
    assert out.getvalue() == "failed: [bold]no[/] [/end]\n"


def test_durations_read_as_a_person_would_say_them() -> None:
    assert [minutes(s) for s in (5, 89, 91, 1800, 166_980)] == ["5 s", "89 s", "2 min", "30 min", "46 h"]
