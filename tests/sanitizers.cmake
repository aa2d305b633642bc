# Configures, builds and tests one sanitizer preset, in reduced form (the preset's LASP_TEST_QUICK).
#     cmake -DSOURCE= -DPRESET= -DDIRECTORY= -DCORES= -DWITH_MPI= -P sanitizers.cmake
function(run what)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${SOURCE} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${PRESET}: ${what} failed (${status})")
  endif()
endfunction()

set(mpi "")
if(WITH_MPI STREQUAL "OFF")
  set(mpi -DLASP_WITH_MPI=OFF)
endif()
run("configuring" ${CMAKE_COMMAND} --preset ${PRESET} -B ${DIRECTORY} ${mpi})
run("building" ${CMAKE_COMMAND} --build ${DIRECTORY} -j ${CORES})
run("testing" ${CMAKE_CTEST_COMMAND} --preset ${PRESET} --test-dir ${DIRECTORY} -j ${CORES} --no-tests=error)
