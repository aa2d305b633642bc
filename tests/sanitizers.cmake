# Configures, builds and tests one sanitizer preset, in reduced form (the preset's LASP_TEST_QUICK).
#     cmake -DSOURCE= -DPRESET= -DDIRECTORY= -DCORES= [-DOPTIONS=] -P sanitizers.cmake
function(run what)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${SOURCE} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${PRESET}: ${what} failed (${status})")
  endif()
endfunction()

run("configuring" ${CMAKE_COMMAND} --preset ${PRESET} -B ${DIRECTORY} ${OPTIONS})
run("building" ${CMAKE_COMMAND} --build ${DIRECTORY} -j ${CORES})
run("testing" ${CMAKE_CTEST_COMMAND} --preset ${PRESET} --test-dir ${DIRECTORY} -j ${CORES} --no-tests=error)
