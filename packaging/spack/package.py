# A Spack package of liblasp. Not tried: Spack was not to be had where it was written. Put it into
# a repository of packages as packages/liblasp/package.py, and give `url` and the checksum of the
# source archive of a release.
from spack.package import *


class Liblasp(CMakePackage, CudaPackage):
    """Linear attention over a sequence that is split along its length across ranks."""

    license("Apache-2.0")

    version("0.2.0")

    variant("mpi", default=True, description="Build liblasp_mpi")
    variant("tools", default=True, description="Build lasp-info, lasp-bench and lasp-trace")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("ninja", type="build")
    depends_on("openblas threads=pthreads")
    depends_on("mpi", when="+mpi")
    depends_on("cuda@13:", when="+cuda")

    generator("ninja")

    def cmake_args(self):
        args = [
            self.define("LASP_BUILD_TESTS", False),
            self.define_from_variant("LASP_BUILD_BENCH", "tools"),
            self.define_from_variant("LASP_WITH_MPI", "mpi"),
            self.define_from_variant("LASP_WITH_CUDA", "cuda"),
        ]
        if self.spec.satisfies("+cuda") and not self.spec.satisfies("cuda_arch=none"):
            # Hopper's tensor cores want 9.0a.
            chosen = self.spec.variants["cuda_arch"].value
            real = ["90a-real" if arch == "90" else f"{arch}-real" for arch in chosen]
            args.append(self.define("LASP_CUDA_ARCHITECTURES", real))
        return args
