"""Where liblasp_mpi is looked for, and what is said where it is not found. (That it works: mpi_ranks.py.)"""

import os
import subprocess
import sys

import pytest

import liblasp
from liblasp import comm

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
    for place in (os.path.join(os.path.dirname(liblasp.__file__), NAME), f"/nowhere/{NAME}", f" {NAME} ("):
        assert place in sentence, place
    assert sentence.endswith(f"Set LASP_MPI_LIBRARY to the path of {NAME}")
