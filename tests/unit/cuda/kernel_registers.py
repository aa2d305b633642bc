#!/usr/bin/env python3
"""The registers in docs/internals/kernel-table.md beside those of the compiled kernels.

kernel_registers.py CUOBJDUMP PAGE OBJECTS...     OBJECTS is a list with semicolons, as CMake writes them
"""

import re
import subprocess
import sys


def main(cuobjdump, page, *objects):
    found = {}
    for path in ";".join(objects).split(";"):
        text = subprocess.run([cuobjdump, "--dump-resource-usage", path], capture_output=True, text=True).stdout
        text = subprocess.run(["c++filt"], input=text, capture_output=True, text=True).stdout
        where = next((part for part in ("hopper/", "mma/", "delta/") if part in path), "")
        for arch in text.split("arch = ")[1:]:
            if not arch.startswith("sm_90"):
                continue
            for name, registers in re.findall(r"Function (.*?):\s*\n?\s*REG:(\d+)", arch):
                kernel = re.search(r"(\w+)(?=[<(](?!anonymous))", re.sub(r"\(anonymous namespace\)::", "", name))
                key = (where, kernel.group(1))
                found[key] = max(found.get(key, 0), int(registers))
    stated = {}
    for kernel, path, registers in re.findall(r"\| `(\w+)`, (\S+) \|.*\| (\d+) \|$", open(page).read(), re.M):
        where = path[: path.find("/") + 1]
        stated.setdefault((where, kernel), []).append(int(registers))
    wrong = 0
    for (where, kernel), numbers in sorted(stated.items()):
        # Templates are compiled where they are used: mma/ has instances of what lies above it.
        here = max((found.get((w, kernel), 0) for w in ((where,) if where else ("", "mma/"))), default=0)
        if here != max(numbers):
            print(f"{where}{kernel}: {here} registers, the table says {max(numbers)}")
            wrong = 1
    print(f"{len(stated)} kernels compared")
    return wrong


sys.exit(main(*sys.argv[1:]))
