# The tools of the repository's build: `python` and LASP_SWIG, or `missing`, which says what is not there. The first
# python3 on the PATH may be one without NumPy, pytest or headers: then the system's.
set(LASP_PYTHON "" CACHE FILEPATH "The Python that its package is built for and tested with; empty: looked for")
set(missing)
find_program(LASP_SWIG NAMES swig swig4.0)
mark_as_advanced(LASP_SWIG)
if(NOT LASP_SWIG)
  set(missing "no SWIG (on Debian: apt install swig)")
  return()
endif()

set(has_all "import numpy, pytest, sysconfig, os, sys
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()['include'], 'Python.h')))")
find_program(first_python python3 NO_CACHE)
set(python)
foreach(candidate ${LASP_PYTHON} ${first_python} /usr/bin/python3)
  execute_process(COMMAND ${candidate} -c "${has_all}" RESULT_VARIABLE lacks OUTPUT_QUIET ERROR_QUIET)
  if(lacks EQUAL 0)  # the interpreter itself, not a wrapper of a version manager
    execute_process(COMMAND ${candidate} -c "import sys; print(sys.executable)" OUTPUT_VARIABLE python
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    break()
  endif()
endforeach()
if(NOT python)
  string(CONCAT missing "no Python 3 with NumPy, pytest and headers "
                        "(on Debian: apt install python3-dev python3-numpy python3-pytest)")
endif()
