# The device code: kernels/ and kernels/mma/ for all architectures asked for, kernels/hopper/ and kernels/delta/ for
# 9.0 alone. The compiler's report of registers and spills is kept beside each object file (cmake/keep_ptxas_report),
# where a test reads it.
file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.cu)
file(GLOB hopper_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/hopper/*.cu ${PROJECT_SOURCE_DIR}/kernels/delta/*.cu)
file(GLOB mma_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/mma/*.cu)
# nvcc makes names of what has internal linkage out of the source's absolute path. With a path from the project's root two
# builds give the same bytes wherever they lie. The option is cudafe++'s own, so it is tried first.
include(CheckCompilerFlag)
check_compiler_flag(CUDA "-Xcudafe=--orig_src_path_name,any.cu" LASP_HAVE_ORIG_SRC_PATH_NAME)
if(LASP_HAVE_ORIG_SRC_PATH_NAME)
  foreach(source ${kernel_sources} ${hopper_sources} ${mma_sources})
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE path)
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -Xcudafe=--orig_src_path_name,${path})
  endforeach()
endif()
add_library(lasp_kernels OBJECT ${kernel_sources})
add_library(lasp_kernels_mma OBJECT ${mma_sources})
add_library(lasp_kernels_hopper OBJECT ${hopper_sources})
set(launcher ${PROJECT_SOURCE_DIR}/cmake/keep_ptxas_report ${CMAKE_CUDA_COMPILER_LAUNCHER})
foreach(target lasp_kernels lasp_kernels_mma lasp_kernels_hopper)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/kernels)
  set_target_properties(${target} PROPERTIES CUDA_STANDARD 20 CUDA_EXTENSIONS OFF CUDA_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON
                        CUDA_COMPILER_LAUNCHER "${launcher}")
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v --expt-relaxed-constexpr
                                           -Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas>)
  target_link_libraries(${target} PRIVATE lasp_installed)
  if(LASP_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
endforeach()
set_target_properties(lasp_kernels_hopper PROPERTIES CUDA_ARCHITECTURES 90a-real)
if(LASP_EMULATOR)  # it reads PTX, out of the same object files; LASP_CUDA_ARCHITECTURES has to have some for 9.0 too
  set_target_properties(lasp_kernels_hopper PROPERTIES CUDA_ARCHITECTURES 90a)
  foreach(target lasp_kernels lasp_kernels_mma lasp_kernels_hopper)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=none>)
  endforeach()
endif()
