# What was configured, in a few lines.
set(sanitize_summary ${LASP_SANITIZE})
if(NOT LASP_SANITIZE)
  set(sanitize_summary none)
endif()
message(STATUS "liblasp ${LASP_VERSION} (ABI ${LASP_ABI}), ${CMAKE_BUILD_TYPE}, sanitizers: ${sanitize_summary}")
message(STATUS "  CPU backend   yes: ${CBLAS_NAME}")
message(STATUS "  MPI transport ${LASP_MPI_SUMMARY}")
message(STATUS "  CUDA backend  ${LASP_CUDA_SUMMARY}")
