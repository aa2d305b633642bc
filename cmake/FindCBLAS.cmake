# A BLAS with the C interface, as target CBLAS::CBLAS. OpenBLAS by pkg-config first; else any library that has
# cblas_sgemm. CBLAS_NAME says what was taken. An OpenBLAS whose names begin with scipy_, as the one that NumPy's and
# SciPy's wheels hold, is used under those names: it can be in a process beside any other.
find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(CBLAS_PC QUIET openblas)
endif()
find_path(CBLAS_INCLUDE_DIR cblas.h HINTS ${CBLAS_PC_INCLUDE_DIRS} PATH_SUFFIXES openblas)
find_library(CBLAS_LIBRARY NAMES openblas cblas blas HINTS ${CBLAS_PC_LIBRARY_DIRS})

if(CBLAS_INCLUDE_DIR AND CBLAS_LIBRARY)
  include(CheckSymbolExists)
  include(CMakePushCheckState)
  cmake_push_check_state(RESET)
  set(CMAKE_REQUIRED_INCLUDES ${CBLAS_INCLUDE_DIR})
  set(CMAKE_REQUIRED_LIBRARIES ${CBLAS_LIBRARY})
  set(CMAKE_REQUIRED_QUIET ON)
  check_symbol_exists(cblas_sgemm cblas.h CBLAS_HAS_SGEMM)
  if(NOT CBLAS_HAS_SGEMM)
    check_symbol_exists(scipy_cblas_sgemm cblas.h CBLAS_HAS_SCIPY_SGEMM)
  endif()
  cmake_pop_check_state()
endif()

set(prefixed)
if(CBLAS_HAS_SCIPY_SGEMM)
  set(CBLAS_HAS_SGEMM ON)
  foreach(name cblas_sgemm openblas_set_num_threads openblas_get_num_threads openblas_get_config openblas_get_corename)
    list(APPEND prefixed ${name}=scipy_${name})
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CBLAS REQUIRED_VARS CBLAS_LIBRARY CBLAS_INCLUDE_DIR CBLAS_HAS_SGEMM
                                  REASON_FAILURE_MESSAGE "on Debian: apt install libopenblas-dev")
if(CBLAS_FOUND AND NOT TARGET CBLAS::CBLAS)
  add_library(CBLAS::CBLAS UNKNOWN IMPORTED)
  set_target_properties(CBLAS::CBLAS PROPERTIES IMPORTED_LOCATION ${CBLAS_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${CBLAS_INCLUDE_DIR}
                        INTERFACE_COMPILE_DEFINITIONS "${prefixed}")
  get_filename_component(CBLAS_NAME ${CBLAS_LIBRARY} NAME)
  if(CBLAS_PC_VERSION AND NOT prefixed)
    string(PREPEND CBLAS_NAME "OpenBLAS ${CBLAS_PC_VERSION}, ")
  endif()
endif()
mark_as_advanced(CBLAS_INCLUDE_DIR CBLAS_LIBRARY)
