# The recipe of LASP_jll for Yggdrasil, where it goes to L/LASP/build_tarballs.jl: liblasp without CUDA, on OpenBLAS32_jll.
# Julia parses it; BinaryBuilder has not run it.
using BinaryBuilder, Pkg

name = "LASP"
version = v"0.2.0"

# The address and the commit of the release's tag.
sources = [GitSource(ENV["LASP_REPOSITORY"], ENV["LASP_COMMIT"])]

# The wrapper that BinaryBuilder makes loads OpenBLAS before liblasp, so that no rpath is needed.
script = raw"""
cd ${WORKSPACE}/srcdir/*lasp*
cmake -G Ninja -S . -B build \
  -DCMAKE_INSTALL_PREFIX=${prefix} \
  -DCMAKE_TOOLCHAIN_FILE=${CMAKE_TARGET_TOOLCHAIN} \
  -DCMAKE_BUILD_TYPE=Release \
  -DLASP_WITH_CUDA=OFF -DLASP_WITH_MPI=OFF -DLASP_BUILD_TESTS=OFF -DLASP_BUILD_BENCH=OFF \
  -DCBLAS_LIBRARY=${libdir}/libopenblas.${dlext} -DCBLAS_INCLUDE_DIR=${includedir}
cmake --build build --parallel ${nproc} --target product
cmake --install build --component runtime
cmake --install build --component dev
install_license LICENSE
"""

platforms = [Platform("x86_64", "linux"; libc = "glibc"), Platform("aarch64", "linux"; libc = "glibc")]

products = [LibraryProduct("liblasp", :liblasp)]

dependencies = [Dependency("OpenBLAS32_jll"),
                Dependency(PackageSpec(name = "CompilerSupportLibraries_jll",
                                       uuid = "e66e0078-7015-5450-92f7-15fbd957f2ae"))]

# GCC 12 is the oldest compiler that liblasp is tested with.
build_tarballs(ARGS, name, version, sources, script, platforms, products, dependencies;
               julia_compat = "1.6", preferred_gcc_version = v"12")
