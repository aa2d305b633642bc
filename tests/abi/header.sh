#!/usr/bin/env bash
# A public header compiles alone, twice included, as C99 and as C++17, pedantic, warnings as errors, and pulls in
# nothing of CUDA or NCCL (of MPI: only lasp_mpi.h).     header.sh [--mpi] INCLUDE_DIR CC CXX
set -euo pipefail
name=lasp.h foreign='cuda|nccl|mpi' language_flags=()
if [ "$1" = --mpi ]; then
  name=lasp_mpi.h foreign='cuda|nccl'
  shift
else
  language_flags=(-Wpadded)  # MPI's own headers have padding
fi
include_dir=$1 cc=$2 cxx=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat > "$work/user.c" <<C
#include <lasp/$name>
#include <lasp/$name>
int main(void) {
  lasp_build_info build = LASP_BUILD_INFO_INIT;
  lasp_nccl_functions nccl = LASP_NCCL_FUNCTIONS_INIT;
  lasp_transport transport = LASP_TRANSPORT_INIT;
  lasp_traffic traffic = LASP_TRAFFIC_INIT;
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  lasp_problem problem = LASP_PROBLEM_INIT;
  lasp_plan_info plan = LASP_PLAN_INFO_INIT;
  lasp_packing packing = LASP_PACKING_INIT;
  lasp_forward_args forward = LASP_FORWARD_ARGS_INIT;
  lasp_backward_args backward = LASP_BACKWARD_ARGS_INIT;
  lasp_step_args step = LASP_STEP_ARGS_INIT;
  lasp_groups groups = LASP_GROUPS_INIT;
  size_t sum = build.size + nccl.size + transport.size + traffic.size + options.size + problem.size + plan.size +
               packing.size + forward.size + backward.size + step.size + groups.size;
  return sum == 0;
}
C
cp "$work/user.c" "$work/user.cpp"
strict=(-pedantic -pedantic-errors -Wall -Wextra -Werror -Wshadow -Wundef -Wconversion -I "$include_dir")
mpi_flags=()
if [ "$name" = lasp_mpi.h ]; then
  read -r -a mpi_flags <<< "$("$cc" --showme:compile 2>/dev/null || "$cc" -compile_info 2>/dev/null | cut -d' ' -f2-)"
  mpi_flags=("${mpi_flags[@]//-I/-isystem}" -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX)
fi

echo "C99:   $cc ${strict[*]}"
"$cc" -std=c99 "${strict[@]}" "${mpi_flags[@]}" "${language_flags[@]}" -Wstrict-prototypes -Wmissing-prototypes \
  -fsyntax-only "$work/user.c"
for standard in c++17 c++20; do
  echo "$standard: $cxx ${strict[*]}"
  "$cxx" -std=$standard "${strict[@]}" "${mpi_flags[@]}" -fsyntax-only "$work/user.cpp"
done

seen=$("$cc" -std=c99 -I "$include_dir" "${mpi_flags[@]}" -M "$work/user.c" | tr ' \\' '\n\n' | grep '\.h$' || true)
own=$(grep -c '/lasp/lasp' <<< "$seen")
[ "$own" -ge 1 ] || { echo "the header was not found among: $seen"; exit 1; }
if grep -iE "/[^/]*($foreign)[^/]*$" <<< "$seen" | grep -v '/lasp/'; then
  echo "$name pulls in the headers above"
  exit 1
fi
