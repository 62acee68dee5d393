"""Where a command finds its store: an application, the environment, a file, a prompt; and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nightmail.cli.app import main
from nightmail.cli.which_store import URL_VARIABLE, has_password
from tests.cli.support import migrated, nightmail, terminal

APPLICATION = """
from faststream import FastStream
from nightmail import OutboxBroker
broker = OutboxBroker("sqlite:///shop.db")
app = FastStream(broker)
remembered = OutboxBroker("memory://")
neither = 7
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return migrated(f"sqlite:///{tmp_path / 'messages.db'}")


# ------------------------------------------------------------------------------------------------ where


@pytest.mark.parametrize("name", ["broker", "app"])
def test_the_store_of_an_application(an_empty_directory: Path, name: str) -> None:
    (an_empty_directory / "shop.py").write_text(APPLICATION)

    # A process of its own: a module is imported once.
    for command in (["migrate"], ["publish", "orders", "7"], ["list", "orders"]):
        ran = subprocess.run(
            [sys.executable, "-m", "nightmail", *command, "--app", f"shop:{name}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr

    assert "orders" in ran.stdout
    assert (an_empty_directory / "shop.db").exists()


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("shop_a:neither", "is no OutboxBroker"),
        ("shop_a:nothing", "is no OutboxBroker"),
        ("shop_a:remembered", "a memory store lives in the process"),
        ("shop_a", "--app is module:broker"),
        (":broker", "--app is module:broker"),
        ("no_such_shop:broker", "there is no module no_such_shop here"),
    ],
)
def test_what_is_no_broker_is_refused(an_empty_directory: Path, app: str, said: str) -> None:
    (an_empty_directory / "shop_a.py").write_text(APPLICATION)

    ran = nightmail("list", "--app", app)

    assert ran.code == 2
    assert said in ran.refusal


def test_an_application_that_cannot_be_imported_is_one_line(an_empty_directory: Path) -> None:
    (an_empty_directory / "shop_b.py").write_text("import a_module_that_is_not_there")

    ran = nightmail("list", "--app", "shop_b:broker")

    assert ran.code == 70
    assert "a_module_that_is_not_there" in ran.refusal


def test_the_argument_comes_before_the_environment_and_that_before_files(
    url: str, tmp_path: Path, an_empty_directory: Path
) -> None:
    nowhere = f"sqlite:///{tmp_path / 'nowhere.db'}"
    own = an_empty_directory / "nightmail.toml"

    own.write_text(f'url = "{nowhere}"')
    assert nightmail("list", "--url", url, url=nowhere).code == 0
    assert nightmail("list", url=url).code == 0
    assert nightmail("list").code == 4
    own.write_text(f'url = "{url}"')
    (an_empty_directory / "pyproject.toml").write_text(f'[tool.nightmail]\nurl = "{nowhere}"')
    assert nightmail("list").code == 0
    own.unlink()
    assert nightmail("list").code == 4
    (an_empty_directory / "pyproject.toml").write_text(f'[tool.nightmail]\nurl = "{url}"\ntables = "jobs"')
    assert nightmail("migrate").code == 0
    assert nightmail("check", "--tables", "nightmail").code == 0
    assert nightmail("check", "--tables", "other").code == 4


def test_a_project_without_our_settings_is_no_obstacle(url: str, an_empty_directory: Path) -> None:
    (an_empty_directory / "pyproject.toml").write_text("[tool.other]\nx = 1")

    assert nightmail("list", url=url).code == 0
    assert "which store?" in nightmail("list").refusal


def test_without_any_url_and_without_a_terminal_it_says_where_to_put_one() -> None:
    ran = nightmail("status")

    assert ran.code == 2
    assert URL_VARIABLE in ran.refusal
    assert "nightmail.toml" in ran.refusal


def test_a_person_is_asked_and_what_they_type_is_not_shown(url: str) -> None:
    with terminal("list") as person:
        person.until("URL of the store (not shown)")
        person.until_hidden()
        person.type(f"{url}\n")
        assert person.end() == 0

        assert "nothing waits there" in person.seen
        assert url not in person.seen
        assert person.echoes()


# ------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("postgresql://me:hunter2@db/shop", True),
        ("postgresql://me:hun/ter2@db/shop", True),
        ("postgresql://me:hun?ter2@db/shop", True),
        ("redis://:hunter2@db", True),
        ("postgresql://db/shop?password=hunter2", True),
        ("postgresql://db/shop?sslpassword=", True),
        ("mysql://db?passwd=x", True),
        ("mysql://db?pwd=x", True),
        ("postgresql:///shop?host=/run/postgresql&password=x", True),
        ("postgresql+asyncpg:///shop?password=x", True),
        ("mysql:///shop?unix_socket=/run/mysqld.sock&passwd=x", True),
        ("redis:///0?password=x", True),
        ("postgresql:///shop?host=/run/postgresql", False),
        ("postgresql://db/shop?passfile=/home/me/.pgpass", False),
        ("postgresql://me@db:5432/shop", False),
        ("redis://a:1,b:2/0", False),
        ("redis://[::1]:6379/0", False),
        ("sqlite:////home/a:b@c/messages.db", False),
        ("sqlite:///messages.db?password=x", False),
        ("SQLite+aiosqlite:////home/a:b@c/messages.db", False),
    ],
)
def test_which_urls_have_a_password(url: str, private: bool) -> None:
    assert has_password(url) is private


@pytest.mark.parametrize("how", [["--url"], []])
@pytest.mark.parametrize(
    "url", ["postgresql://shop:hunter2@127.0.0.1:1/shop", "postgresql:///shop?host=/run&password=hunter2"]
)
def test_a_password_among_the_arguments_is_refused_and_not_repeated(how: list[str], url: str) -> None:
    ran = nightmail("check", *how, url)

    assert ran.code == 2
    assert URL_VARIABLE in ran.refusal
    assert "hunter2" not in ran.err


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop:hunter2@127.0.0.1:1/shop",
        "postgresql:///shop?host=127.0.0.1&port=1&password=hunter2",
    ],
)
def test_a_file_with_a_password_must_be_its_owners_alone(an_empty_directory: Path, url: str) -> None:
    secret = f'url = "{url}"'
    own = an_empty_directory / "nightmail.toml"
    own.write_text(secret)
    own.chmod(0o644)

    open_to_others = nightmail("check")
    own.chmod(0o600)
    private = nightmail("check")

    assert open_to_others.code == 2
    assert "chmod 600" in open_to_others.refusal
    assert private.code == 3, "it was used, and there is no server"
    own.unlink()
    (an_empty_directory / "pyproject.toml").write_text(f"[tool.nightmail]\n{secret}")
    shared = nightmail("check")
    assert shared.code == 2
    assert URL_VARIABLE in shared.refusal
    assert "hunter2" not in open_to_others.err + private.err + shared.err


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("url = ", "cannot be read"),
        ("url = 7", "must be texts"),
        ('uri = "sqlite:///x.db"', "unknown setting: uri"),
        ('url = "sqlite:///x.db"\n[more]\nx = "y"', "must be texts"),
    ],
)
def test_a_file_that_makes_no_sense_is_named(an_empty_directory: Path, written: str, said: str) -> None:
    (an_empty_directory / "nightmail.toml").write_text(written)

    ran = nightmail("list")

    assert ran.code == 2
    assert "nightmail.toml" in ran.refusal
    assert said in ran.refusal


def test_a_file_that_is_no_text_is_named(an_empty_directory: Path) -> None:
    (an_empty_directory / "nightmail.toml").write_bytes('url = "sqlite:///käse.db"'.encode("latin-1"))

    ran = nightmail("list")

    assert ran.code == 2
    assert ran.refusal == "nightmail.toml cannot be read: it is not UTF-8"


@pytest.mark.parametrize("written", ["tool = 3", "tool = []", "[tool]\nnightmail = 3"])
def test_a_project_whose_settings_are_no_table_is_named(an_empty_directory: Path, written: str) -> None:
    (an_empty_directory / "pyproject.toml").write_text(written)

    ran = nightmail("list")

    assert ran.code == 2
    assert ran.refusal.startswith("pyproject.toml: ")
    assert "must be a table" in ran.refusal


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "a store's URL looks like"),
        ("oracle://db", "no store for 'oracle'"),
        ("memory://", "a memory store lives in the process"),
        ("sqlite://x.db", "three slashes"),
    ],
)
def test_a_wrong_url_is_one_line(url: str, said: str) -> None:
    ran = nightmail("list", url=url)

    assert ran.code == 2
    assert said in ran.refusal


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop:hunter2@127.0.0.1:1/shop",
        "mysql://shop:hunter2@127.0.0.1:1/shop",
        "redis://:hunter2@127.0.0.1:1",
        "sqlite:////no/such/directory/messages.db",
    ],
    ids=lambda url: url.partition(":")[0],
)
def test_a_server_that_is_down_is_one_line_with_the_next_step(url: str) -> None:
    ran = nightmail("list", url=url)

    assert ran.code == 3
    assert f"from {URL_VARIABLE})" in ran.refusal
    assert "Is the server up" in ran.refusal
    assert "hunter2" not in ran.err


def test_an_application_and_a_url_are_too_much(url: str) -> None:
    assert "not both" in nightmail("list", "--app", "a:b", "--url", url).refusal
    assert "a broker knows its tables" in nightmail("list", "--app", "a:b", "--tables", "x").refusal


def test_the_password_stands_in_no_argument_of_the_process(url: str) -> None:
    with terminal("status", "--watch", url=url) as person:
        person.until("Ctrl-C ends")
        command = Path(f"/proc/{person.pid}/cmdline").read_bytes()
        person.interrupt()
        person.end()

    assert os.fsencode(url) not in command


# ------------------------------------------------------------------------------------ without the extra


def test_without_the_extra_it_says_what_to_install() -> None:
    script = (
        "import sys\n"
        "sys.modules['typer'] = None\n"
        "from nightmail.cli.app import main\n"
        "sys.exit(main(['status']))"
    )

    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert ran.stderr == "nightmail: the command line is not installed. Run: pip install 'nightmail[cli]'\n"


def test_wrong_options_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["nonsense"], "No such command"),
        (["list", "--nonsense"], "No such option"),
        (["list", "--limit", "0"], "--limit"),
        (["show", "tea"], "not a valid int"),
        (["show"], "Missing argument"),
        (["publish"], "Missing argument"),
        (["publish", "orders", "7", "--on-conflict", "explode"], "'skip', 'replace', 'earliest'"),
    ):
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
        assert "--help` shows what there is" in line
