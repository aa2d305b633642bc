# How a test is declared. The sanitizer presets run all tests of their build, with LASP_TEST_QUICK=1 in the
# environment, at which a suite runs fewer cases. A test with the label "full" takes long for what it finds: `make
# check-full` runs it, and `make check` does not.

set(LASP_TEST_TIMEOUT 120)
if(LASP_SANITIZE)
  set(LASP_TEST_TIMEOUT 600)
endif()

# Open MPI refuses to run as root, and to run more ranks than cores, unless told otherwise.
set(LASP_MPI_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1)
if(LASP_SANITIZE STREQUAL "address")
  # Open MPI frees less than it takes, out of plug-ins that have no name any more when leaks are looked for.
  set(MPIEXEC_EXECUTABLE ${CMAKE_COMMAND} -E env ASAN_OPTIONS=detect_leaks=0 ${MPIEXEC_EXECUTABLE})
endif()

# lasp_add_gtest(name [INTERNAL] SOURCES file... [TIMEOUT seconds])
# A GoogleTest program whose tests become CTest tests "name.Suite.Case". INTERNAL links the library's objects, whose
# names the shared library hides; without it the program sees the public interface only. In a sanitizer build, where
# starting a process costs more than most of the tests, a program is two CTest tests, "name.0" and "name.1".
function(lasp_add_gtest name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "INTERNAL" "TIMEOUT" "SOURCES")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT ${LASP_TEST_TIMEOUT})
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE lasp_flags $<IF:$<BOOL:${arg_INTERNAL}>,lasp_objects,lasp> GTest::gtest
                        GTest::gtest_main Threads::Threads)
  lasp_compile_test(${name})
  if(NOT arg_SOURCES MATCHES "\\.c(;|$)")
    lasp_precompile_test(${name})
  endif()
  if(LASP_SANITIZE)
    foreach(shard 0 1)
      lasp_add_command_test(${name}.${shard} TIMEOUT ${arg_TIMEOUT}
                            COMMAND ${CMAKE_COMMAND} -E env GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=${shard}
                                    $<TARGET_FILE:${name}> --gtest_brief=1)
    endforeach()
    return()
  endif()
  gtest_discover_tests(${name} TEST_PREFIX ${name}. NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT ${arg_TIMEOUT})
endfunction()

# lasp_add_command_test(name COMMAND word... [TIMEOUT seconds] [SPARE seconds] [PROPERTIES key value...])
# Exit status 77 means skipped; the program has then printed "SKIPPED: reason".
# SPARE: a "full" test that runs after all others, the longest first, and is left out where no time is left for it
# (tests/spare). The number is what it takes on a slow machine. With a COST of its own among the properties it runs
# earlier, and the number has to cover what comes after it, too.
function(lasp_add_command_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT;SPARE" "COMMAND;PROPERTIES")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT ${LASP_TEST_TIMEOUT})
  endif()
  if(arg_SPARE)
    list(POP_FRONT arg_COMMAND program)
    if(TARGET ${program})  # which add_test() knows as its first word alone
      set(program $<TARGET_FILE:${program}>)
    endif()
    list(PREPEND arg_COMMAND ${program})
    list(PREPEND arg_COMMAND ${PROJECT_SOURCE_DIR}/tests/spare ${arg_SPARE})
    math(EXPR cost "${arg_SPARE} - 10000")
    list(PREPEND arg_PROPERTIES LABELS full COST ${cost})
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77
                       ENVIRONMENT "${LASP_MPI_ENVIRONMENT}" ${arg_PROPERTIES})
endfunction()

# lasp_add_mpi_test(name TARGET program PROCESSES n [ARGUMENTS word...] [TIMEOUT seconds])
function(lasp_add_mpi_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TARGET;PROCESSES;TIMEOUT" "ARGUMENTS")
  lasp_add_command_test(${name} TIMEOUT ${arg_TIMEOUT} PROPERTIES PROCESSORS ${arg_PROCESSES}
                        COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${arg_PROCESSES}
                                $<TARGET_FILE:${arg_TARGET}> ${arg_ARGUMENTS})
endfunction()

# A test that this build cannot run: counted as skipped, with its reason.
function(lasp_add_skipped_test name reason)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "SKIPPED: ${reason}")
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: ")
endfunction()

# lasp_add_sanitizer_suite(preset SPARE seconds [COST cost])
# One CTest test that configures the preset beside this build, builds it, and runs its tests.
function(lasp_add_sanitizer_suite preset)
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  cmake_path(SET directory NORMALIZE ${PROJECT_BINARY_DIR}/../${preset})
  set(options)
  if(LASP_WITH_MPI STREQUAL "OFF")
    set(options -DOPTIONS=-DLASP_WITH_MPI=OFF)
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SPARE;COST" "")
  set(cost)
  if(arg_COST)
    set(cost COST ${arg_COST})
  endif()
  lasp_add_command_test(sanitizers.${preset} TIMEOUT 1200 SPARE ${arg_SPARE}
                        PROPERTIES PROCESSORS ${cores} ${cost}
                        COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DPRESET=${preset}
                                -DDIRECTORY=${directory} -DCORES=${cores} ${options}
                                -P ${PROJECT_SOURCE_DIR}/tests/sanitizers.cmake)
endfunction()
