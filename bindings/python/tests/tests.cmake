# Tests of the Python package, one CTest test for each file of pytest. They import the package from the build
# folder, whose Python files are links to the source.
file(GLOB modules CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/liblasp/*.py
     ${CMAKE_CURRENT_SOURCE_DIR}/liblasp/*.pyi)
foreach(entry ${modules} ${CMAKE_CURRENT_SOURCE_DIR}/liblasp/py.typed
              ${CMAKE_CURRENT_SOURCE_DIR}/liblasp/jax ${CMAKE_CURRENT_SOURCE_DIR}/liblasp/torch)
  if(EXISTS ${entry})
    cmake_path(GET entry FILENAME name)
    file(CREATE_LINK ${entry} ${package}/${name} SYMBOLIC)
  endif()
endforeach()
set_property(TARGET lasp_python lasp_jax PROPERTY BUILD_RPATH $<TARGET_FILE_DIR:lasp>)

add_library(lasp_python_c_loop MODULE ${CMAKE_CURRENT_LIST_DIR}/c_loop.c)  # what test_speed.py compares with
target_link_libraries(lasp_python_c_loop PRIVATE lasp_flags lasp)
set_target_properties(lasp_python_c_loop PROPERTIES C_VISIBILITY_PRESET default)

set(environment PYTHONPATH=${CMAKE_CURRENT_BINARY_DIR}/package PYTHONDONTWRITEBYTECODE=1
    LASP_SOURCE=${PROJECT_SOURCE_DIR} LASP_LAYOUT=${PROJECT_BINARY_DIR}/bindings/layout/lasp-layout.json
    LASP_C_LOOP=$<TARGET_FILE:lasp_python_c_loop>)
if(TARGET lasp_mpi)
  list(APPEND environment LASP_MPI_LIBRARY=$<TARGET_FILE:lasp_mpi>)
endif()
function(lasp_add_python_test name)
  lasp_add_command_test(binding.python.${name} ${ARGN})
  set_property(TEST binding.python.${name} APPEND PROPERTY ENVIRONMENT ${environment})
endfunction()

file(GLOB files CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/tests
     ${CMAKE_CURRENT_SOURCE_DIR}/tests/test_*.py)
list(FILTER files EXCLUDE REGEX "^test_(torch|jax)")
foreach(file ${files})
  string(REGEX REPLACE "^test_(.*)\\.py$" "\\1" name ${file})
  lasp_add_python_test(${name} COMMAND ${python} ${CMAKE_CURRENT_SOURCE_DIR}/tests/run.py ${file})
endforeach()
set_tests_properties(binding.python.speed PROPERTIES PROCESSORS 2)  # times of an idle machine
lasp_add_python_test(example COMMAND ${python} ${PROJECT_SOURCE_DIR}/examples/python/four_ranks.py)
lasp_add_python_test(example_watchdog COMMAND ${python} ${PROJECT_SOURCE_DIR}/examples/python/watchdog.py)
lasp_add_python_test(wheel TIMEOUT 300 PROPERTIES LABELS full FIXTURES_REQUIRED installed
                     COMMAND ${CMAKE_CURRENT_LIST_DIR}/wheel ${python} ${CMAKE_CURRENT_BINARY_DIR}/wheel
                             ${PROJECT_BINARY_DIR}/tests/installed)
lasp_add_python_test(mypy TIMEOUT 400 PROPERTIES LABELS full
                     COMMAND ${CMAKE_CURRENT_LIST_DIR}/mypy ${python} ${CMAKE_CURRENT_BINARY_DIR}/mypy)
if(TARGET lasp_mpi)
  lasp_add_python_test(mpi PROPERTIES PROCESSORS 2
                       COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 2 ${python}
                               ${CMAKE_CURRENT_LIST_DIR}/mpi_ranks.py)
endif()
if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/tests/torch.cmake)
  include(${CMAKE_CURRENT_SOURCE_DIR}/tests/torch.cmake)
endif()
