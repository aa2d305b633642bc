#!/usr/bin/env python3
"""Every link of the Markdown files leads somewhere, and so does every page of docs/ that any file names.
    links.py SOURCE_DIR"""
import os
import re
import subprocess
import sys

SKIPPED = {"build", "target", "node_modules", "__pycache__"}
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
PAGE = re.compile(r"(?<![\w/.])docs/[\w./-]*?\.md\b")
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:")


def files(root):
    """What git knows of; in a tree without git, all but what builds leave."""
    known = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True, check=False)
    if known.returncode == 0 and known.stdout:
        yield from (os.path.join(root, name) for name in known.stdout.split("\0") if name)
        return
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED and (f == ".ci" or not f.startswith(".")))
        for name in sorted(names):
            yield os.path.join(folder, name)


def without_code(text):
    """The same number of lines; what stands in fences or backticks is gone."""
    lines, fenced = [], False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        lines.append("" if fenced or fence else re.sub(r"`[^`]*`", "", line))
        fenced ^= fence
    return "\n".join(lines)


def anchors(text):
    """The names that GitHub gives to a page's headings."""
    found = set()
    for line in text.split("\n"):
        if heading := re.match(r"#+\s+(.*?)\s*$", line):
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def main():
    root = os.path.realpath(sys.argv[1])
    wrong, links, named = [], 0, 0
    for path in files(root):
        try:
            with open(path, encoding="utf-8") as opened:
                text = opened.read()
        except (UnicodeDecodeError, OSError):
            continue
        here = os.path.relpath(path, root)
        if path.endswith(".md"):
            for number, line in enumerate(without_code(text).split("\n"), 1):
                for target in LINK.findall(line):
                    if ADDRESS.match(target):
                        continue
                    links += 1
                    file, _, anchor = target.partition("#")
                    goal = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
                    if not os.path.exists(goal):
                        wrong.append(f"{here}:{number}: {target} is not there")
                    elif anchor and goal.endswith(".md"):
                        with open(goal, encoding="utf-8") as opened:
                            if anchor not in anchors(opened.read()):
                                wrong.append(f"{here}:{number}: {target}: the page has no such heading")
        for number, line in enumerate(text.split("\n"), 1):
            for page in PAGE.findall(line):
                named += 1
                if not os.path.exists(os.path.join(root, page)):
                    wrong.append(f"{here}:{number}: names {page}, which is not there")
    if not links or not named:
        wrong.append("no links were found: this test looks in the wrong place")
    print("\n".join(wrong) if wrong else f"{links} links and {named} names of pages lead somewhere")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
