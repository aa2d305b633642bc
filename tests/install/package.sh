#!/usr/bin/env bash
# What find_package(lasp) answers: the versions it accepts, and why a component is not to be had.
#     package.sh PREFIX WORK_DIR LIBDIR VERSION
set -euo pipefail
prefix=$1 work=$2 libdir=$3 version=$4 without= failed=0
rm -rf "$work"
mkdir -p "$work/source"
cp -r "$prefix" "$work/no_mpi"
rm -f "$work/no_mpi/$libdir"/cmake/lasp/lasp_mpiTargets*
cat > "$work/source/CMakeLists.txt" << 'END'
cmake_minimum_required(VERSION 3.25)
project(asks LANGUAGES ${LANGUAGE})
find_package(lasp ${WANTED})
foreach(target lasp lasp_mpi)
  if(TARGET lasp::${target})
    message(STATUS "has ${target}")
  endif()
endforeach()
message(STATUS "found=${lasp_FOUND}")
END

# expect PATTERN PREFIX LANGUAGE WORDS...: what CMake prints, on one line, matches
expect() {
  local pattern=$1 at=$2 language=$3 said
  shift 3
  said=$(cmake -S "$work/source" -B "$work/build" --fresh -DCMAKE_PREFIX_PATH="$at" "-DLANGUAGE=$language" $without \
    "-DWANTED=$(IFS=';' && echo "$*")" 2>&1 | tr -s ' \n' ' ') || true
  [[ $said =~ $pattern ]] && echo "ok: find_package(lasp $*)" && return
  echo "find_package(lasp $*) says nothing like \"$pattern\": $said"
  failed=1
}
minor=${version%.*}
before=${minor%.*}.$((${minor#*.} - 1)) next=${minor%.*}.$((${minor#*.} + 1))
expect "has lasp .*found=1" "$prefix" C "$minor" REQUIRED
expect "has lasp .*found=1" "$prefix" CXX "$version" REQUIRED
[ "${minor#*.}" = 0 ] || expect "not accepted.*version: $version" "$prefix" C "$before" REQUIRED
expect "not accepted.*version: $version" "$prefix" C "$next" REQUIRED
expect "not accepted.*version: $version" "$prefix" C $((${version%%.*} + 1)).0 REQUIRED
expect "lasp has no component telepathy, only mpi" "$prefix" C REQUIRED COMPONENTS telepathy
expect "installation of lasp was built without MPI" "$work/no_mpi" C REQUIRED COMPONENTS mpi
expect "found=0" "$work/no_mpi" C COMPONENTS mpi
expect "has lasp -- found=1" "$work/no_mpi" C REQUIRED OPTIONAL_COMPONENTS mpi
expect "has lasp -- found=1" "$work/no_mpi" C REQUIRED
if [ -e "$prefix/$libdir/cmake/lasp/lasp_mpiTargets.cmake" ]; then
  expect "has lasp -- has lasp_mpi -- found=1" "$prefix" C REQUIRED COMPONENTS mpi
  expect "does not enable the language C" "$prefix" CXX REQUIRED COMPONENTS mpi
  without=-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
  expect "MPI was not found" "$prefix" C REQUIRED COMPONENTS mpi
else
  echo "not asked: the component mpi, without which this was built"
fi
exit $failed
