#!/usr/bin/env bash
# The layer rule: capi (the contract) may include src (the engine); src sees of kernels their headers of
# parameter structs; kernels see neither; the MPI transport sees only public headers. The library never ends the host process
# and never prints. No source file outgrows one idea.     layers.sh SOURCE_DIR
set -uo pipefail
cd "$1" || exit 1
failed=0
report() {  # report MESSAGE LINES
  [ -z "$2" ] && return
  printf '%s:\n%s\n' "$1" "$2"
  failed=1
}
sources() { find "$@" -type f \( -name '*.[ch]' -o -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort; }

# An include names a file of the project when one is found as the compiler looks: beside the file first, then from the
# include directories. Prints "file target" for each.
all=$(sources src capi kernels tests bench examples bindings)
includes() {
  [ $# = 0 ] && return
  awk -v all="$all" '
    BEGIN { n = split(all, list, "\n"); for (i = 1; i <= n; ++i) known[list[i]] = 1 }
    /^[ \t]*#[ \t]*include[ \t]*["<]/ {
      name = $0; sub(/^[^"<]*["<]/, "", name); sub(/[">].*/, "", name)
      here = FILENAME; sub(/[^\/]*$/, "", here)
      m = split(here "|src/|capi/|capi/include/|kernels/|tests/||", directory, "|")
      for (i = 1; i <= m; ++i) {
        path = directory[i] name
        while (sub(/[^\/]+\/\.\.\//, "", path)) {}
        if (path in known) { print FILENAME, path; break }
      }
    }' "$@"
}

engine=$(sources src | grep -v '^src/comm/mpi/')
mpi=$(sources src/comm/mpi)
contract=$(sources capi)
kernels=$(sources kernels)
[ -n "$engine" ] && [ -n "$contract" ] || { echo "no sources found below $PWD"; exit 1; }

report "capi may not include kernels" "$(includes $contract | grep ' kernels/')"
report "src may include of capi only the public headers, of kernels only launch.h, packed_tables.h, delta.h, from_zero.h, known_factors.h, values.h, marks.h, peer_messages.h and peer_ring.h" \
  "$(includes $engine | grep -E ' (capi/|kernels/)' | grep -vE ' (capi/include/lasp/lasp\.h|kernels/(launch|packed_tables|delta|from_zero|known_factors|values|marks|peer_messages|peer_ring)\.h)$')"
report "src may not include a test, a benchmark or an example" \
  "$(includes $engine $contract | grep -E ' (tests|bench|examples|bindings)/')"
report "kernels may include neither src nor capi" "$(includes $kernels | grep -E ' (src|capi)/')"
report "the MPI transport may include only public headers" \
  "$(includes $mpi | grep -vE ' (capi/include/lasp/[a-z_]+\.h|src/comm/mpi/.*)$')"
report "lasp.h may include only stddef.h and stdint.h" \
  "$(grep -nE '^ *# *include' capi/include/lasp/lasp.h | grep -vE '<(stddef|stdint)\.h>$')"
report "no CUDA header outside kernels and src/cuda, no MPI header outside the MPI transport, no NCCL header at all" \
  "$(grep -nE '# *include *[<"](cuda|nccl|nvtx|mpi)' $engine $contract $kernels |
     grep -vE '^capi/include/lasp/lasp_mpi\.h:|^(src/cuda|kernels)/[^:]*:[0-9]+: *# *include *[<"](cuda|nvtx)|include "nccl_library\.h"$')"
# The rooms of src/. What a room may include: itself and those named behind it.
may_include() {
  case $1 in
    base) echo "" ;;
    core) echo "base" ;;
    comm) echo "base" ;;
    exchange) echo "base core comm" ;;
    engine) echo "base core comm exchange" ;;
    # A device knows the exchange: with messages between hosts the CPU's passes are who advances it.
    cpu) echo "base core comm exchange engine" ;;
    cuda) echo "base core comm exchange engine cuda/device cuda/transport cuda/backend kernels" ;;
    cuda/cut) echo "base core kernels" ;;
    cuda/choice) echo "base core engine/backend cuda/cut kernels" ;;
    cuda/device) echo "base core comm exchange engine/device_times cuda/transport kernels" ;;
    cuda/transport) echo "base comm exchange/agreement cuda/device/cuda_call cuda/device/driver_call kernels" ;;
    cuda/backend) echo "base core engine/backend cuda/cut cuda/choice cuda/device/cuda_call kernels" ;;
    cuda/absent) echo "base comm engine" ;;
  esac
}
rooms=$(sources src | sed -E 's|/[^/]+$||; s|^src/||' | grep -v '^comm/mpi$' | sort -u)
for room in $rooms; do
  allowed=$(may_include "$room")
  [ -n "$allowed" ] || [ "$room" = base ] || report "tests/abi/layers.sh does not know a room" "src/$room"
  pattern="^[^ ]+ (capi/include/lasp/lasp\.h|src/$room/[^/]*$(for other in $allowed; do printf '|(src/)?%s[/.].*' "$other"; done))$"
  report "src/$room may include of src: $room $allowed" \
    "$(includes $(sources "src/$room" -maxdepth 1) | grep -E ' (src|kernels)/' | grep -vE "$pattern")"
done

# What ends the process or prints. Comments are cut off first; the string "..." of a message may hold these words.
code() { awk '{ line = $0; gsub(/"([^"\\]|\\.)*"/, "\"\"", line); sub(/\/\/.*/, "", line); sub(/^ *\*.*/, "", line);
                print FILENAME ":" FNR ": " line }' "$@"; }
report "the library may not end the process" "$(code $engine $mpi $contract $kernels | grep -vE 'static_assert|void ([A-Za-z]+::)?abort\(' |
  grep -E '(^|[^_[:alnum:].>])(std::)?(abort|exit|_exit|_Exit|quick_exit|terminate|assert|raise)[[:space:]]*\(|MPI_Abort')"
report "the library may not print" "$(code $engine $mpi $contract $kernels |
  grep -E '(^|[^_[:alnum:]])(printf|puts|putchar|fputs|fputc|perror)[[:space:]]*\(|std::(cout|cerr|clog)|(^|[^_[:alnum:]])std(out|err)([^_[:alnum:]]|$)')"

report "files of more than 450 lines" "$(sources capi src kernels tests bench examples |
  grep -vE '^(capi/include|tests/abi/first)/lasp/lasp\.h$' | xargs -r wc -l | awk '$2 != "total" && $1 > 450 { print $1, $2 }')"
# "What is this file for" stands in its first line, or in that of the header of the same name.
report "the first line does not say what the file is for" "$(awk '
  FNR == 1 { stem = FILENAME; sub(/\.[a-z]+$/, "", stem); files[FILENAME] = stem; if (/^(\/\/|\/\*)/) said[stem] = 1 }
  END { for (file in files) if (!(files[file] in said)) print file }' $engine $mpi $contract $kernels | sort)"

[ $failed = 0 ] && echo "$(wc -w <<< "$engine $mpi $contract $kernels") files keep the rule"
exit $failed
