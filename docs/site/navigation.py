"""The site's navigation, from the tables of docs/README.md: a table is a tab, its rows are pages."""
import os
import re

import sources

LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "bench/README.md", "bench/results/README.md")
TABS = {"tutorial": "Tutorials"}
BESIDE = {"lasp.h": "C: lasp.h"}  # shorter or clearer beside other pages
AFTER = {"lasp.h": [{"Python": "reference/liblasp.md"}, {"Python: liblasp.torch": "reference/liblasp_torch.md"},
                     {"Python: liblasp.jax": "reference/liblasp_jax.md"},
                     {"Rust": "reference/rust.md"}]}


def of(root):
    tabs = [{"liblasp": "index.md"}]
    with open(os.path.join(root, "docs", "README.md"), encoding="utf-8") as opened:
        lines = opened.read().split("\n")
    for number, line in enumerate(lines):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or set(line) <= set("|-"):
            continue
        if lines[number + 1].startswith("|---"):
            tabs.append({TABS.get(cells[0], cells[0].capitalize()): []})
            continue
        pages = next(iter(tabs[-1].values()))
        for text, target in LINK.findall(cells[0]):
            path = os.path.normpath(os.path.join("docs", target))
            title = BESIDE.get(text, text.replace("`", ""))
            pages.append({title[0].upper() + title[1:]: sources.uri_of(root, path)})
            pages.extend(AFTER.get(text, ()))
    if len(tabs) < 4:
        raise ValueError("docs/README.md: the tables of pages were not found")
    tabs.append({"Project": [{"All pages": sources.uri_of(root, "docs/README.md")}] +
                            [sources.uri_of(root, path) for path in PROJECT]})
    return tabs
