# Precompiled headers: reading headers is half of what a file takes to compile. LASP_PRECOMPILE is ON in the sanitizer
# presets and TESTS, the GoogleTest programs alone, in `ci`. Other builds compile every file as it stands, and so find
# one that does not include what it uses.
set(LASP_COMMON_HEADERS <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <functional> <limits> <map>
    <memory> <mutex> <optional> <span> <string> <string_view> <thread> <utility> <vector>)

# lasp_precompile(target): for a library of many C++ files.
function(lasp_precompile target)
  if(LASP_PRECOMPILE AND NOT LASP_PRECOMPILE STREQUAL "TESTS")
    target_precompile_headers(${target} PRIVATE ${LASP_COMMON_HEADERS})
  endif()
endfunction()

# lasp_compile_test(program): for a GoogleTest program, which compiles longer than it runs.
function(lasp_compile_test program)
  target_compile_options(${program} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# lasp_precompile_test(program): for one of C++ files alone that lasp_compile_test was called for. All of them share one
# precompiled header.
function(lasp_precompile_test program)
  if(NOT LASP_PRECOMPILE)
    return()
  endif()
  if(NOT TARGET lasp_test_headers)
    add_executable(lasp_test_headers ${PROJECT_SOURCE_DIR}/tests/support/precompiled.cpp)
    target_include_directories(lasp_test_headers PRIVATE ${PROJECT_SOURCE_DIR}/capi/include)
    target_link_libraries(lasp_test_headers PRIVATE lasp_flags GTest::gtest Threads::Threads)
    lasp_compile_test(lasp_test_headers)
    target_precompile_headers(lasp_test_headers PRIVATE ${LASP_COMMON_HEADERS} <gtest/gtest.h> <lasp/lasp.h>)
  endif()
  target_precompile_headers(${program} REUSE_FROM lasp_test_headers)
endfunction()
