"""What is said about a run, and where it is written."""

from __future__ import annotations

import io
import logging
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from benchmarks import __main__ as command
from benchmarks import plots, report
from benchmarks.bounds import BOUNDS, Bound, Place, verdicts
from benchmarks.environments import ROOT
from benchmarks.estimate import Estimate, Left
from benchmarks.registry import Scenario, chosen, full_run
from benchmarks.results import FULL, Course, Results, Row, Table, commit, flush_ms
from benchmarks.run import _progress, run
from benchmarks.scenarios import snapshot
from benchmarks.show import summary_lines
from benchmarks.systems import OURS, STORES

PLACE = Place("drain", "typed", "postgres", "nightmail")
ADR = "docs/adr/0002-the-engine-costs-per-message.md"


def measured(figure: float) -> Results:
    table = Table("drain", "typed", "postgres", "messages/s", [Row("nightmail", [figure])])
    return Results(quick=False, tables=[table])


async def nothing(lab: object, store: str) -> None: ...


def scenario(name: str) -> Scenario:
    return Scenario(name, "nothing", nothing, {"sqlite": 1.0}, {"sqlite": 0.1})


def test_a_figure_that_is_missed_says_where_to_read_why_and_one_that_holds_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound = Bound("drain", PLACE, at_least=100, unit="", why=ADR)
    monkeypatch.setattr("benchmarks.bounds.BOUNDS", [bound])

    missed, held = measured(99), measured(100)

    assert ADR in summary_lines(verdicts(missed))[0]
    assert ADR not in summary_lines(verdicts(held))[0]
    assert "[why](adr/0002-the-engine-costs-per-message.md)" in report._summary(missed)
    assert "[why]" not in report._summary(held)


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.what)
def test_every_bound_names_the_section_that_says_why_it_is_missed(bound: Bound) -> None:
    assert _section(bound.why)


def test_every_figure_that_the_committed_runs_miss_says_why() -> None:
    missed = [
        verdict
        for results in report.committed().values()
        for verdict in verdicts(results)
        if verdict.holds is False
    ]

    assert [verdict.bound.what for verdict in missed if not verdict.why] == []


def test_what_says_why_a_figure_is_missed_speaks_of_its_store() -> None:
    # Whether it is missed or not: the next run may say otherwise.
    of_a_store = [bound for bound in BOUNDS if bound.ours.store in STORES]

    assert [bound.what for bound in of_a_store if bound.ours.store not in _section(bound.why)] == []


def _section(why: str) -> str:
    """The text under a heading of a page, in small letters; nothing if there is no such heading."""
    path, _, wanted = why.partition("#")
    level, section = 0, list[str]()
    for line in (ROOT / path).read_text().lower().splitlines():
        marks, _, title = line.partition(" ")
        depth = len(marks) if marks.strip("#") == "" else 0
        if level and 0 < depth <= level:
            break
        if level:
            section.append(line)
        elif depth and title.strip().replace(" ", "-") == wanted:
            level = depth
    return "\n".join(section)


@pytest.mark.parametrize(
    ("what", "stores"),
    [
        ("two processes, of one", STORES),
        ("idle, 20 subscribers, connections", ("postgres", "redis", "mariadb")),
        ("throughput after the first million, of the first 100,000", STORES),
    ],
)
def test_what_is_measured_on_several_stores_has_a_bound_on_each(what: str, stores: tuple[str, ...]) -> None:
    assert {bound.ours.store for bound in BOUNDS if bound.what.endswith(what)} == set(stores)


def test_a_quick_run_of_everything_names_each_bound_of_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = [
        Scenario(one.name, one.what, nothing, one.seconds, one.quick, only_if_asked=one.only_if_asked)
        for one in chosen(None)
    ]

    quick = run(everything, STORES, tmp_path / "quick.json", quick=True)
    full = run(everything, STORES, tmp_path / "full.json")

    assert [each.bound for each in verdicts(quick)] == [each.bound for each in verdicts(full)]
    assert {each.bound.ours.scenario for each in verdicts(full)} == {
        bound.ours.scenario for bound in BOUNDS
    } - {"operating", "ten-million"}


def test_a_run_of_everything_judges_each_bound_though_a_part_of_it_is_missing() -> None:
    whole = Results(quick=False, everything=True, parts=full_run())
    older = Results(quick=False, everything=True, parts=[each for each in full_run() if "future" not in each])

    assert [each.bound for each in verdicts(older)] == [each.bound for each in verdicts(whole)]
    assert {each.word for each in verdicts(older)} == {"not measured"}


@pytest.mark.parametrize(
    ("names", "stores"), [(["drain", "idle"], STORES), (None, ("redis",)), (["operating"], ("sqlite",))]
)
def test_a_run_of_a_part_judges_the_bounds_of_that_part(
    names: list[str] | None, stores: tuple[str, ...], tmp_path: Path
) -> None:
    some = [
        Scenario(one.name, one.what, nothing, one.seconds, one.quick, only_if_asked=one.only_if_asked)
        for one in chosen(names)
    ]

    results = run(some, stores, tmp_path / "part.json")

    judged = [each.bound for each in verdicts(results)]
    assert judged
    assert not results.everything
    assert judged == [bound for bound in BOUNDS if bound.part in results.parts]


def test_a_run_notes_how_long_each_part_took(tmp_path: Path) -> None:
    results = run([scenario("first"), scenario("second")], ["sqlite"], tmp_path / "some.json")

    assert list(results.took) == ["first on sqlite", "second on sqlite"]
    assert 0 <= sum(results.took.values()) <= results.seconds


def test_the_page_says_on_what_commit_and_disk_it_was_measured(tmp_path: Path) -> None:
    said = report._about(run([scenario("some")], ["sqlite"], tmp_path / "some.json"))

    assert re.search(r"^- commit: ([0-9a-f]{7,}\+?|unknown)$", said, re.MULTILINE)
    assert re.search(r"^- a flush of the disk: \d+\.\d\d ms$", said, re.MULTILINE)


def test_the_commit_has_a_plus_only_if_the_product_has_changed_since(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *who, *arguments], cwd=tmp_path, capture_output=True, check=True)
        return done.stdout.decode().strip()

    product = tmp_path / "src" / "nightmail"
    product.mkdir(parents=True)
    (product / "store.py").write_text("one = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "--no-verify", "-m", "first")
    name = git("rev-parse", "--short", "HEAD")

    (tmp_path / "notes.txt").write_text("not the product")
    clean = commit(tmp_path)
    (product / "store.py").write_text("one = 2\n")

    assert (clean, commit(tmp_path)) == (name, f"{name}+")


def test_without_a_repository_the_commit_is_unknown(tmp_path: Path) -> None:
    assert commit(tmp_path / "none") == "unknown"


def test_measuring_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    assert flush_ms(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_cut_off_leaves_the_results_of_the_one_before(tmp_path: Path) -> None:
    async def interrupt(lab: object, store: str) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "deep" / "full.json"
    before = run([scenario("whole")], ["sqlite"], path)
    cut_off = [scenario("first"), Scenario("second", "", interrupt, {"sqlite": 1.0}, {})]

    results = run(cut_off, ["sqlite"], path)

    assert results.interrupted
    assert Results.read(path).parts == before.parts == ["whole on sqlite"]
    assert Results.read(tmp_path / "deep" / "full.unfinished.json").interrupted


def test_a_run_that_ends_leaves_only_its_results(tmp_path: Path) -> None:
    run([scenario("whole")], ["sqlite"], tmp_path / "full.json")

    assert [file.name for file in tmp_path.iterdir()] == ["full.json"]


@pytest.mark.parametrize(
    ("results", "said"),
    [
        (
            Results(quick=False, everything=True, parts=[each for each in full_run() if each != "recovery"]),
            "A full run, before there was recovery:",
        ),
        (Results(quick=True), "A quick run"),
        (Results(quick=False, interrupted=True), "A run that was cut off"),
        (Results(quick=False, parts=["operating on redis", "operating on sqlite"]), "A run of operating"),
    ],
)
def test_the_page_says_what_kind_of_run_it_shows(results: Results, said: str) -> None:
    assert report._about(results).startswith(said)


def test_the_page_calls_a_run_of_everything_full(tmp_path: Path) -> None:
    everything = [Scenario(one.name, one.what, nothing, one.seconds, one.quick) for one in chosen(None)]

    assert report._about(run(everything, STORES, tmp_path / "full.json")).startswith("A full run")


def test_drawing_again_removes_old_pictures_and_nothing_else(tmp_path: Path) -> None:
    for name in ("drain-redis.png", "recovery-redis.svg", "steady-redis-x.png", "holiday.png", "notes.txt"):
        (tmp_path / name).write_text("old")

    plots.clear(tmp_path)

    assert sorted(file.name for file in tmp_path.iterdir()) == ["holiday.png", "notes.txt"]


@pytest.fixture
def as_typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Sets the words of the command, which leaves this process as it is."""
    level = logging.getLogger("nightmail").level
    monkeypatch.setattr("signal.signal", lambda *_: None)
    yield lambda *words: monkeypatch.setattr("sys.argv", ["benchmarks", "run", *words])
    logging.getLogger("nightmail").setLevel(level)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quick", "--scenario", "recovery"], "recovery takes too long for a quick run: leave out QUICK"),
        (
            ["--quick", "--scenario", "takeover", "--scenario", "operating"],
            "leave out QUICK; operating takes",
        ),
        (["--quick", "--scenario", "future", "--store", "redis"], "future runs on postgres in a quick run"),
        (["--scenario", "takeover", "--store", "redis"], "takeover runs on postgres"),
        (["--scenario", "year", "--store", "redis"], "year has no store and runs with all: leave out STORE"),
    ],
)
def test_a_run_of_nothing_is_an_error_that_says_what_to_do(
    words: list[str],
    said: str,
    as_typed: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    as_typed(*words)
    monkeypatch.setattr(command, "run", unwanted)

    with pytest.raises(SystemExit) as left:
        command.main()

    assert left.value.code == 2
    assert said in capsys.readouterr().err


def unwanted(*_: object, **__: object) -> None:
    pytest.fail("it was run")


def test_what_a_run_leaves_out_though_it_was_asked_for_is_said(
    as_typed: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def notes(chosen: list[Scenario], *_: object, **__: object) -> Results:
        ran.extend(one.name for one in chosen)
        return Results(quick=True, interrupted=True)

    as_typed("--quick", "--scenario", "keys", "--scenario", "recovery")
    monkeypatch.setattr(command, "run", notes)

    assert command.main() == 130
    assert ran == ["recovery", "keys"]
    assert "left out: recovery takes too long for a quick run" in capsys.readouterr().err


def test_a_run_that_is_cut_off_while_peers_are_installed_ends_like_any_other(
    as_typed: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    as_typed("--scenario", "drain")
    monkeypatch.setattr("benchmarks.run.prepare", interrupted)

    assert command.main() == 130


@pytest.mark.parametrize("name", ["results", "results.txt", "."])
def test_results_are_written_to_a_file_that_says_what_it_is(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "run", "--out", name])

    with pytest.raises(SystemExit):
        command.main()

    assert "ends in .json" in capsys.readouterr().err


def test_the_estimate_is_there_from_the_start_and_follows_the_pace_of_the_run() -> None:
    now = 0.0
    estimate = Estimate([100.0, 200.0, 300.0], clock=lambda: now)

    assert estimate.left == 600
    estimate.begin(0)
    now = 40.0
    assert estimate.left == 560
    now = 400.0
    assert estimate.left == 500  # The first takes longer than it should: the others are still to come.
    estimate.begin(1)
    slower = estimate.left
    assert 1000 < slower < 2000  # Four times slower than planned, and not yet believed in full.
    now = 500.0
    assert estimate.left == pytest.approx(slower - 100)
    estimate.begin(2)
    assert estimate.left > 0
    estimate.end()
    assert estimate.left == 0


def test_the_estimate_is_shown_in_minutes_and_seconds() -> None:
    assert Left(Estimate([125.0], clock=lambda: 0.0)).render(None) == Text("about 2:05 left")


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_is_on_the_console_of_the_tables_unless_that_is_a_file(terminal: bool) -> None:
    tables = Console(file=io.StringIO(), force_terminal=terminal)

    bar = _progress(Estimate([1.0]), tables).console

    # Two consoles on one terminal do not know of each other's lines; and a bar is not wanted in a file.
    assert (bar is tables) is terminal
    assert bar is tables or bar.stderr


def test_the_course_of_a_snapshot_has_the_throughput_of_each_whole_second() -> None:
    seconds = [{"at": 100.0 + n, "count": 800.0 - n, "p50": 0.01, "p99": 0.02} for n in range(5)]

    lateness, throughput = snapshot._courses(OURS, "postgres", seconds, (101.5, 103.5))

    assert (lateness.case, lateness.seconds) == ("lateness", [0, 1, 2, 3, 4])
    assert throughput == Course(
        *("snapshot", "throughput", "postgres", "messages/s"),
        [1, 2, 3],
        {"handled": [799, 798, 797]},
        {"snapshot held": (1.5, 3.5)},
    )


@pytest.mark.parametrize(
    ("tails", "seconds"),
    [
        pytest.param([0.005] * 10, 0.0, id="normal at once"),
        pytest.param([0.005] * 7 + [0.019, 0.005, 0.005], 0.0, id="what is under 20 ms is normal"),
        pytest.param(
            [0.015, 0.014, 0.015, 0.015, *[0.015] * 3, 0.029, 0.015, 0.015], 0.0, id="twice the median"
        ),
        pytest.param([0.9, 0.015, 0.9, *[0.015] * 4, 0.05, 0.05, 0.015], 3.0, id="not twice the worst"),
    ],
)
def test_it_is_normal_again_when_the_tail_is_twice_the_median_before(
    tails: list[float], seconds: float
) -> None:
    # Held from the fifth second to the seventh.
    course = [{"at": 100.0 + n, "p99": tail} for n, tail in enumerate(tails)]

    assert snapshot._until_normal(course, (104.0, 106.0)) == seconds


def test_the_snapshot_is_held_while_the_rate_is_reached() -> None:
    wanted = [bound for bound in BOUNDS if bound.ours.case == snapshot.SENT]

    assert [bound.at_least for bound in wanted] == [snapshot.RATE * 0.99]


def test_the_page_says_why_something_failed() -> None:
    failed = [{"what": "drain, pgqueuer", "error": "ChildFailed: no answer in 300 s\nTraceback: ..."}]

    page = report._run(Results(quick=False, failures=failed), Path("full.json"))

    assert page.endswith("- drain, pgqueuer: ChildFailed: no answer in 300 s\n")


def test_rows_without_a_value_are_drawn_with_their_note() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    rows = [Row("nightmail", [20.0]), Row("pgqueuer", [30.0]), Row("procrastinate", note="not within 75 s")]

    figure = plots._bars([Table("recovery", "after SIGKILL", "postgres", "s", [*rows, Row("other")])])

    (axis,) = figure.axes
    assert [text.get_text().strip() for text in axis.texts] == [
        "not measured",
        "not within 75 s",
        "30.0",
        "20.0",
    ]
    assert [label.get_text() for label in axis.get_yticklabels()][1] == "procrastinate"


@pytest.mark.parametrize(
    ("row", "color"),
    [
        ("nightmail, no log", plots.OURS_COLOR),
        ("100,000 after the first million", plots.OURS_COLOR),
        ("faststream-outbox, best, beside none", plots.OTHERS_COLOR),
        ("asyncio.sleep, no store", plots.OTHERS_COLOR),
        ("by hand", plots.LIMIT_COLOR),
    ],
)
def test_what_is_measured_of_ours_has_our_colour(row: str, color: str) -> None:
    assert plots._color(row) == color


def test_the_overview_shows_tables_of_a_full_run() -> None:
    full = Results.read(FULL)

    assert [place for place in plots.HEADLINES if full.table(*place) is None] == []
