"""What is installed: the files of the package, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

from nightmail import __version__

ROOT = Path(__file__).parents[2]
PRODUCT = ROOT / "src" / "nightmail"
ABOUT = f"nightmail-{__version__}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from this tree as a release builds it."""
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", directory],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (file,) = directory.iterdir()
    return zipfile.ZipFile(file)


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    ours = {
        file.relative_to(PRODUCT.parent).as_posix()
        for file in PRODUCT.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    about = {f"{ABOUT}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}

    assert set(wheel.namelist()) == ours | about | {f"{ABOUT}/licenses/LICENSE"}
    assert {Path(name).suffix for name in ours} == {".py", ".sql", ".lua", ".md", ".typed"}
    assert "nightmail/py.typed" in ours


def test_the_wheel_starts_nothing_by_being_installed(wheel: zipfile.ZipFile) -> None:
    # A .pth file runs code whenever Python starts; so would a file beside the package, such as sitecustomize.py.
    assert {name.partition("/")[0] for name in wheel.namelist()} == {"nightmail", ABOUT}
    points = ConfigParser()
    points.read_string(wheel.read(f"{ABOUT}/entry_points.txt").decode())
    assert {name: dict(points[name]) for name in points.sections()} == {
        "console_scripts": {"nightmail": "nightmail.cli.app:main"}
    }


def test_the_wheel_alone_can_be_imported(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", "import nightmail.stores.sqlite; print(nightmail.__file__)"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )

    assert Path(done.stdout.strip()).parent == tmp_path / "nightmail"
