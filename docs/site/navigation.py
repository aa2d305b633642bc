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
    _refuse_unlisted(root, tabs)
    tabs.append({"Project": [{"All pages": sources.uri_of(root, "docs/README.md")}] +
                            [sources.uri_of(root, path) for path in PROJECT]})
    return tabs


def _refuse_unlisted(root, tabs):
    listed = {uri for tab in tabs[1:] for pages in tab.values() for page in pages for uri in page.values()}
    for folder, folders, names in os.walk(os.path.join(root, "docs")):
        folders[:] = [each for each in folders if each != "site"]
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), root)
            if name.endswith(".md") and path != "docs/README.md" and sources.uri_of(root, path) not in listed:
                raise SystemExit(f"{path}: has no row in docs/README.md, of which the site's navigation is made")
