# A cross build for aarch64 by Debian's compiler, with what LASP_AARCH64_ROOT holds of Debian's packages for arm64.
set(root $ENV{LASP_AARCH64_ROOT})
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH ${root})
foreach(what LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${what} ONLY)
endforeach()
# What OpenBLAS itself needs.
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,-rpath-link,${root}/usr/lib/aarch64-linux-gnu)
set(CMAKE_SHARED_LINKER_FLAGS_INIT ${CMAKE_EXE_LINKER_FLAGS_INIT})
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -cpu max,sme=off -L ${root})
set(openblas openblas-pthread)  # a link in an installed system
set(CBLAS_LIBRARY ${root}/usr/lib/aarch64-linux-gnu/${openblas}/libopenblas.so CACHE FILEPATH "")
set(CBLAS_INCLUDE_DIR ${root}/usr/include/aarch64-linux-gnu/${openblas} CACHE PATH "")
