"""Which NCCL the comm of a torch process group is used by: torch's own, also where another is loaded. Shown with
libraries that look like a torch with its NCCL and a second one, on no GPU."""
import os
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import liblasp  # noqa: E402
from liblasp.torch import SequenceGroup, nccl  # noqa: E402

# In a process of its own, since what is loaded stays. argv[1]: the folder of the libraries.
PROGRAM = """
import ctypes, sys
import liblasp
from liblasp.torch import nccl

def say():
    try:
        version = ctypes.c_int()
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(nccl.functions()["get_version"])(ctypes.byref(version))
        print(version.value)
    except liblasp.Unsupported as error:
        print(error)

other = sys.argv[1] + "/libnccl-other.so"
ctypes.CDLL(other)
say()
ctypes.CDLL(sys.argv[1] + "/libtorch_cuda.so")
say()
ctypes.CDLL(other, mode=ctypes.RTLD_GLOBAL)
say()
"""


def test_it_is_torch_s_own():
    folder = os.environ.get("LASP_FAKE_TORCH")
    if not folder:
        pytest.skip("LASP_FAKE_TORCH is not set: ctest sets it, to libraries that the build makes")
    if torch.version.cuda or torch.version.hip:
        pytest.skip("this torch has an NCCL of its own, so that the libraries of the test would not be taken for it")
    done = subprocess.run([sys.executable, "-c", PROGRAM, folder], stdout=subprocess.PIPE, text=True, check=True)
    without, own, interposed = done.stdout.splitlines()
    assert "this torch does not show the functions of its NCCL" in without
    assert own == "22809"  # and not the other, 22005, which came first
    assert "a second NCCL is loaded with RTLD_GLOBAL" in interposed


def test_a_group_s_comm_is_made_with_it(monkeypatch):
    taken = []
    monkeypatch.setattr(nccl, "communicator", lambda group, device: (16, None))
    monkeypatch.setattr(nccl, "functions", lambda: {"send": 32})
    monkeypatch.setattr(liblasp.Comm, "nccl", lambda *arguments: taken.append(arguments))
    group = types.SimpleNamespace(_given=None, size=2, process_group=None, _at_close=[])
    SequenceGroup._make_comm(group, torch.device("cuda", 0))
    assert taken == [(16, {"send": 32})]


def test_the_table_is_the_library_s():
    """Every function that liblasp asks for, and no other."""
    table = {name for name in dir(liblasp.raw.lasp_nccl_functions) if not name.startswith("_")}
    assert set(nccl._FUNCTIONS) == table - {"size", "this", "thisown"}
