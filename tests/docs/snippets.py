#!/usr/bin/env python3
"""Code that a page of docs/ shows stands in the file that the page names, line for line. A page names it in a comment
before the block:
    <!-- from examples/c/nccl.c -->
Where one block of a page has such a comment, all blocks in that language have one.      snippets.py SOURCE_DIR"""
import os
import re
import sys

FENCE = re.compile(r"^```(\w*)\s*$")
FROM = re.compile(r"^<!-- from (\S+) -->\s*$")


def blocks(lines):
    """(line number, language, the file it is from or None, its lines)"""
    i = 0
    while i < len(lines):
        fence = FENCE.match(lines[i])
        if fence is None:
            i += 1
            continue
        end = next(j for j in range(i + 1, len(lines)) if lines[j].startswith("```"))
        source = FROM.match(lines[i - 1]) if i > 0 else None
        yield i + 1, fence[1], source and source[1], [line.rstrip() for line in lines[i + 1:end]]
        i = end + 1


def stands_in(block, lines):
    """Whether the block is a run of these lines, all of them indented by the same further blanks or none."""
    for start in range(len(lines) - len(block) + 1):
        if not lines[start].endswith(block[0]) or lines[start][:-len(block[0])].strip():
            continue
        indent = lines[start][:len(lines[start]) - len(block[0])]
        if all(have == (indent + want if want else "") for want, have in zip(block, lines[start:])):
            return True
    return False


def main():
    root = sys.argv[1]
    wrong, shown = [], 0
    for folder, _, names in sorted(os.walk(os.path.join(root, "docs"))):
        for name in sorted(n for n in names if n.endswith(".md")):
            page = os.path.join(folder, name)
            here = os.path.relpath(page, root)
            with open(page, encoding="utf-8") as opened:
                found = list(blocks(opened.read().split("\n")))
            languages = {language for _, language, source, _ in found if source}
            for number, language, source, block in found:
                if source is None:
                    if language in languages:
                        wrong.append(f"{here}:{number}: does not say which file this code is from")
                    continue
                shown += 1
                with open(os.path.join(root, source), encoding="utf-8") as opened:
                    if not stands_in(block, [line.rstrip() for line in opened.read().split("\n")]):
                        wrong.append(f"{here}:{number}: this code does not stand in {source}")
    if not shown:
        wrong.append("no page shows code from a file: this test looks in the wrong place")
    print("\n".join(wrong) if wrong else f"{shown} blocks of code stand in their files")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
