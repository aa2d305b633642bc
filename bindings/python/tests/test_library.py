"""Where the library in use and its files are, and what is said where it cannot be loaded. Where liblasp_mpi is looked for,
and what is said where it is not found. (That it works: mpi_ranks.py.)"""

import os
import subprocess
import sys

import pytest

import liblasp
import liblasp.__main__ as liblasp_main
from liblasp import comm, extension

NAME = f"liblasp_mpi.so.{liblasp.raw.LASP_ABI}"
BESIDE = os.path.join(os.path.dirname(liblasp.raw.library_path()), NAME)


def test_the_library_in_use():
    path = liblasp.raw.library_path()
    assert os.path.basename(path).startswith("liblasp.so") and os.path.exists(path)


def refused():
    with pytest.raises(liblasp.Unsupported) as caught:
        comm._mpi_library()
    assert caught.value.status == liblasp.raw.LASP_ERROR_LIBRARY_MISSING
    return str(caught.value)


def test_beside_the_library_in_use(monkeypatch):
    """As in a prefix where both were installed, or in a build."""
    if not os.path.exists(BESIDE):
        pytest.skip("this build has no liblasp_mpi")
    monkeypatch.delenv("LASP_MPI_LIBRARY", raising=False)
    assert comm._mpi_library()._name == BESIDE


def test_the_path_that_is_named(monkeypatch):
    monkeypatch.setenv("LASP_MPI_LIBRARY", "/nowhere/mpi.so")
    sentence = refused()
    assert "LASP_MPI_LIBRARY = /nowhere/mpi.so; tried /nowhere/mpi.so (" in sentence
    assert BESIDE not in sentence  # one that is named is not replaced by another


NOWHERE = """
import liblasp
liblasp.raw.library_path = lambda: "/nowhere/liblasp.so"
try:
    liblasp.comm._mpi_library()
except liblasp.Unsupported as error:
    print(error)
"""


def test_nowhere():
    """In a process of its own, where none is loaded yet."""
    environment = {name: value for name, value in os.environ.items() if name != "LASP_MPI_LIBRARY"}
    sentence = subprocess.run([sys.executable, "-c", NOWHERE], env=environment, capture_output=True, text=True,
                              check=True).stdout.strip()
    if not sentence:
        pytest.skip("one is installed where the system's loader looks")
    assert "LASP_MPI_LIBRARY is not set" in sentence
    for place in (f"/nowhere/{NAME}", f" {NAME} ("):
        assert place in sentence, place
    assert sentence.endswith(f"Set LASP_MPI_LIBRARY to the path of {NAME}")


@pytest.mark.parametrize("libdir", ["lib", "lib64", "lib/x86_64-linux-gnu"])
def test_the_folders_of_an_installation(libdir, tmp_path, monkeypatch):
    library = tmp_path / libdir / "liblasp.so.9"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr(liblasp.raw, "library_path", lambda: str(library))
    assert liblasp.get_library_dir() == str(library.parent)
    with pytest.raises(FileNotFoundError, match="the header lasp/lasp.h was not installed with .*liblasp.so.9"):
        liblasp.get_include()
    header = tmp_path / "include" / "lasp" / "lasp.h"
    header.parent.mkdir(parents=True)
    header.touch()
    assert liblasp.get_include() == str(tmp_path / "include")


def test_the_folder_of_an_unknown_library(monkeypatch):
    monkeypatch.setattr(liblasp.raw, "library_path", lambda: "")
    with pytest.raises(FileNotFoundError, match="the loader does not tell"):
        liblasp.get_library_dir()


@pytest.mark.parametrize("option,below", [("--library-dir", ""), ("--pkgconfig-dir", "pkgconfig"),
                                          ("--cmake-dir", "cmake/lasp")])
def test_the_folders_on_the_command_line(option, below, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["liblasp", option])
    liblasp_main.main()
    assert capsys.readouterr().out.strip() == os.path.join(liblasp.get_library_dir(), below).rstrip("/")


def test_what_the_command_line_says(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["liblasp"])
    liblasp_main.main()
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert lines["library"] == liblasp.raw.library_path() and lines["version"] == liblasp.__version__


# A wheel for glibc 2.28 on systems that have it, an older one, musl, and none that Python knows.
@pytest.mark.parametrize("tag,found,words", [
    ("cp311-abi3-manylinux_2_28_x86_64", ("glibc", "2.28"), ""),
    ("cp311-abi3-manylinux_2_28_x86_64", ("glibc", "2.100"), ""),
    ("cp311-abi3-manylinux_2_28_x86_64", ("glibc", "2.17"), "needs glibc 2.28 or later, and this system has glibc 2.17:"),
    ("cp311-abi3-manylinux_2_28_x86_64", ("musl", "1.2"), "needs glibc 2.28 or later, and this system has musl:"),
    ("cp311-abi3-manylinux_2_28_x86_64", ("", ""), "needs glibc 2.28 or later, and this system has another C library:"),
    ("cp311-cp311-linux_x86_64", ("glibc", "2.17"), "")])
def test_a_wheel_for_another_c_library(tag, found, words, monkeypatch):
    class Wheel:
        def read_text(self, name):
            return f"Wheel-Version: 1.0\nTag: {tag}\n" if name == "WHEEL" else None

    monkeypatch.setattr(extension.metadata, "distribution", lambda name: Wheel())
    monkeypatch.setattr(extension.platform, "libc_ver", lambda: found)
    said = extension.explain(ImportError("why not"))
    assert "why not" in said and words in said and ("The wheel needs" in said) == bool(words)
