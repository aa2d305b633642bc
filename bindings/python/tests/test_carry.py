"""The scripts that put programs and the package into a folder for another machine: what they name, and that they delete
nothing that they did not make."""

import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

import liblasp

SOURCE = os.environ["LASP_SOURCE"]
CARRY = os.path.join(SOURCE, "tests", "gpu", "carry")
CARRY_TORCH = os.path.join(SOURCE, "tests", "gpu", "torch", "carry")
OWN_FOLDER = os.path.join(SOURCE, "scripts", "own-folder")
INCLUDE = sysconfig.get_paths()["include"]
SWIG = shutil.which("swig")
needs_swig = pytest.mark.skipif(not (SWIG and shutil.which("gcc")), reason="needs SWIG and gcc")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("script,inside", [(CARRY, ""), (CARRY_TORCH, "liblasp")], ids=["carry", "torch/carry"])
def test_nothing_is_deleted_unasked(script, inside, tmp_path):
    mine = tmp_path / inside
    mine.mkdir(exist_ok=True)
    (mine / "thesis.txt").write_text("the only copy")
    (mine / "data").mkdir()
    done = run(script, "--out", str(tmp_path))
    assert done.returncode == 1 and "holds files of somebody else's" in done.stderr, done.stderr
    assert files_in(mine) == ["data", "thesis.txt"]


def test_own_folder(tmp_path):
    folder = tmp_path / "new" / "folder"
    for _ in range(2):  # made, then emptied
        assert run(OWN_FOLDER, str(folder)).returncode == 0
        assert len(list(folder.iterdir())) == 1
        (folder / "inside").mkdir()
        (folder / "inside" / "file").write_text("made here")
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link", ""):
        done = run(OWN_FOLDER, str(tmp_path / name) if name else "")
        assert done.returncode == 1 and done.stderr.startswith("own-folder: "), name
    assert (tmp_path / "file").read_text() == "no folder" and folder.exists()


@pytest.fixture
def carried(tmp_path):
    """What tests/gpu/carry leaves, as far as torch/carry needs it."""
    libraries = tmp_path / "carried"
    libraries.mkdir()
    shutil.copy(liblasp.raw.library_path(), libraries / f"liblasp.so.{liblasp.raw.LASP_ABI}")
    done = run(CARRY_TORCH, "--out", str(tmp_path), "--carried", str(libraries), "--include", INCLUDE)
    assert done.returncode == 0, done.stderr
    return tmp_path


@needs_swig
def test_the_module_is_of_one_python(carried):
    """The one whose headers it was made with, which imports it; another does not, and says why."""
    modules = [path.name for path in (carried / "liblasp").glob("_lasp.*so")]
    assert modules in (["_lasp" + sysconfig.get_config_var("EXT_SUFFIX")], ["_lasp.abi3.so"])
    environment = {**os.environ, "PYTHONPATH": str(carried)}
    loaded = run(sys.executable, "-c", "import liblasp; print(liblasp.__file__)", env=environment)
    assert loaded.stdout.strip() == str(carried / "liblasp" / "__init__.py"), loaded.stderr
    # As for another Python: a module of another name.
    os.rename(carried / "liblasp" / modules[0], carried / "liblasp" / "_lasp.cpython-30-x86_64-linux-gnu.so")
    refused = run(sys.executable, "-c", "import liblasp", env=environment)
    assert "ImportError: liblasp has no extension module for this Python" in refused.stderr, refused.stderr
    assert "_lasp.cpython-30-x86_64-linux-gnu.so" in refused.stderr
