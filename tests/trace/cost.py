"""What traces cost where none is taken: instructions of the lines of source that ask for a trace, with all that they
call, of all instructions of the smallest forward and backward there are, counted by callgrind. At most one in a thousand.
    cost.py SMALL_PASSES WORK"""

import collections
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys

COUNT, LIMIT = 200, 0.001
ROOT = pathlib.Path(__file__).resolve().parents[2]


def instructions_of_lines(path):
    """(file, line) -> instructions, and those of what it calls; inlined code counts where it was written."""
    names, counts, called = {}, collections.Counter(), collections.Counter()
    file, line, call = "", 0, False
    with open(path, encoding="utf-8") as lines:
        for text in lines:
            if named := re.match(r"(c?)f[lie]=\((\d+)\)(?: (.*))?$", text):
                name = names.setdefault(named[2], named[3])
                file = file if named[1] else name
            elif text.startswith("calls="):
                call = True
            elif costs := re.match(r"([+-]?)(\d+|\*) (\d+)$", text):
                sign, number, cost = costs.groups()
                if number != "*":
                    line = line + int(sign + number) if sign else int(number)
                (called if call else counts)[file, line] += int(cost)
                call = False
    return counts, called


@functools.cache
def source(file):
    path = ROOT / file.split("/./")[-1]  # debug information names files from the build folder, as FOLDER/./capi/...
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def text_of(file, line):
    return source(file)[line - 1] if 0 < line <= len(source(file)) else ""


def main():
    program, work = sys.argv[1:]
    if not shutil.which("valgrind"):
        print("SKIPPED: valgrind is not here (apt install valgrind)")
        return 77
    os.makedirs(work, exist_ok=True)
    out = os.path.join(work, "cost.out")
    ran = subprocess.run(["valgrind", "--tool=callgrind", "--toggle-collect=lasp_forward",
                          "--toggle-collect=lasp_backward", "--callgrind-out-file=" + out, program, str(COUNT)],
                         env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True)
    if ran.returncode != 0:
        print(ran.stderr)
        return 1
    counts, called = instructions_of_lines(out)
    of_traces = {place: n for place, n in (counts + called).items()
                 if re.search(r"trace\w*\.(h|cpp)$", place[0]) or
                 re.search(r"\btrace(_|\(\))|Trace(Span|::)", text_of(*place))}
    whole, traces = sum(counts.values()) / COUNT, sum(of_traces.values()) / COUNT
    for (file, line), n in sorted(of_traces.items(), key=lambda item: -item[1]):
        print(f"{n / COUNT:8.1f}  {os.path.basename(file)}:{line}  {text_of(file, line).strip()}")
    print(f"traces: {traces:.0f} of {whole:.0f} instructions of a forward and a backward, {traces / whole:.2%}")
    if whole < 1000 or not of_traces:
        print("FAILED: no pass, or no line that asks for a trace was found in it")
        return 1
    if traces > LIMIT * whole:
        print(f"FAILED: more than {LIMIT:.1%}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
