"""What a wheel of `make wheel` holds, run by the Python it was installed for: wheel.py SITE_PACKAGES. It computes a sum
that is exact, and is told why there is no CUDA device."""

import os
import platform
import sys

import numpy as np

import liblasp

home = os.path.dirname(os.path.realpath(liblasp.__file__))
assert home == os.path.join(os.path.realpath(sys.argv[1]), "liblasp"), home
assert liblasp.get_library_dir() == os.path.join(home, "lib")
assert liblasp.get_include() == os.path.join(home, "include")
with open("/proc/self/maps") as maps:
    blas = {line.split()[-1] for line in maps if "openblas" in line and "lasp" in line}
assert blas and all(path.startswith(os.path.join(os.path.dirname(home), "liblasp.libs")) for path in blas), blas
build = liblasp.build_info()
assert build.blas.startswith("OpenBLAS "), build.blas
x = np.ones((1, 3, 1, 8), np.float32)
with open("/proc/cpuinfo") as processor:
    flags = set(processor.read().split())
with liblasp.Context(device="cpu") as context:
    chosen = context.plan(liblasp.Problem.like(x, x, x)).describe()
avx2 = platform.machine() == "x86_64" and {"avx2", "fma", "f16c"} <= flags  # an emulator shows its host's flags
avx512 = avx2 and {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags
assert ("AVX-512" if avx512 else "AVX2" if avx2 else "portable vectors") in chosen, chosen
with liblasp.Context() as context:
    o = context.plan(liblasp.Problem.like(x, x, x, scale=1.0)).forward(x, x, x)
assert (o[0, :, 0, 0] == [8, 16, 24]).all(), o
try:
    liblasp.Context(device="cuda:0").close()
    cuda = "a GPU"
except liblasp.Error as error:
    cuda = str(error)
    assert ("driver" in cuda) == build.has_cuda, cuda
    assert ("this build has no CUDA backend" in cuda) != build.has_cuda, cuda
print(f"Python {sys.version.split()[0]}: computes, {build.blas.split(',')[0]}; cuda: {cuda}")
