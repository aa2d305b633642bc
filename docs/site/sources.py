"""Files of the repository as pages of the site. A page of docs/ links to files beside it, as one does who reads it in
the repository. Whatever such a link reaches outside of docs/ becomes a page too: Markdown as it is, other text as a
listing, pictures as copies."""
import os
import re
import subprocess

LINK = re.compile(r"(\]\(\s*<?)([^)\s>#]*)(#[^)\s>]*)?(>?(?:\s+\"[^\"]*\")?\s*\))")
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:")
PICTURES = (".svg", ".png")
LANGUAGES = {".c": "c", ".h": "c", ".cpp": "cpp", ".hpp": "cpp", ".cu": "cuda", ".cuh": "cuda", ".py": "python", ".rs": "rust",
             ".jl": "julia", ".sh": "bash", ".json": "json"}
SPECIAL = {"README.md": "index.md", "docs/README.md": "contents.md",
           "capi/include/lasp/lasp.h": "reference/lasp_h.md"}
MOST = 200_000  # characters of a listing


def uri_of(root, path):
    """Where the site has a file or folder of the repository."""
    if path in SPECIAL:
        return SPECIAL[path]
    if path.startswith("docs/"):
        return path[len("docs/"):]
    if os.path.isdir(os.path.join(root, path)):
        inside = os.path.join(path, "README.md")
        return uri_of(root, inside) if os.path.exists(os.path.join(root, inside)) else f"project/{path}/index.md"
    return f"project/{path}" + ("" if path.endswith((".md", *PICTURES)) else ".md")


def links_of(root, path, text):
    """Every link to another file on a page, as (line, match, the path that it reaches)."""
    fenced = False
    for number, line in enumerate(text.split("\n")):
        fenced ^= line.lstrip().startswith("```")
        if fenced or line.startswith("    "):
            continue
        for match in LINK.finditer(line):
            if match[2] and not ADDRESS.match(match[2]):
                goal = os.path.normpath(os.path.join(os.path.dirname(path), match[2]))
                if os.path.exists(os.path.join(root, goal)):
                    yield number, match, goal


def with_site_links(root, path, uri, text):
    """The page with its links as the site has the files: relative to the page's own place."""
    lines = text.split("\n")
    for number, match, goal in reversed(list(links_of(root, path, text))):
        target = os.path.relpath(uri_of(root, goal), os.path.dirname(uri) or ".")
        lines[number] = (lines[number][:match.start()] + match[1] + target + (match[3] or "") + match[4] +
                         lines[number][match.end():])
    return "\n".join(lines)


class Contents:
    """All that docs/, the README and the files in `also` reach, directly or through other pages."""

    def __init__(self, root, also):
        self.root, self._paths, found = root, {}, ["README.md", *also]
        for folder, folders, names in os.walk(os.path.join(root, "docs")):
            folders[:] = sorted(f for f in folders if f != "site")
            found += [os.path.relpath(os.path.join(folder, n), root) for n in sorted(names) if n.endswith(".md")]
        while found:
            path = found.pop()
            uri = uri_of(root, path)
            if uri in self._paths:
                continue
            self._paths[uri] = path
            if os.path.isdir(os.path.join(root, path)) and not uri.endswith("/index.md"):
                self._paths[uri] = path = os.path.join(path, "README.md")
            if path.endswith(".md"):
                found += [goal for _, _, goal in links_of(root, path, self._read(path))]

    def path_of(self, uri):
        return self._paths.get(uri)

    def pages(self):
        for uri, path in self._paths.items():
            if not uri.endswith(PICTURES) and path != "capi/include/lasp/lasp.h":  # lasp_h.py makes that
                yield uri, self._text(path)

    def pictures(self):
        for uri, path in self._paths.items():
            if uri.endswith(PICTURES):
                yield uri, os.path.join(self.root, path)

    def _read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as opened:
            return opened.read()

    def _text(self, path):
        if path.endswith(".md"):
            return self._read(path)
        hidden = "---\nsearch: {exclude: true}\n---\n\n"
        if os.path.isdir(os.path.join(self.root, path)):
            return hidden + f"# {path}/\n\n" + "\n".join(f"- `{name}`" for name in self._names(path)) + "\n"
        language = LANGUAGES.get(os.path.splitext(path)[1], "text")
        text = self._read(path)[:MOST]
        return hidden + f"# {os.path.basename(path)}\n\n`{path}`\n\n``````{language}\n{text.rstrip()}\n``````\n"

    def _names(self, path):
        known = subprocess.run(["git", "-C", self.root, "ls-files", path], capture_output=True, text=True, check=False)
        if known.returncode == 0 and known.stdout:
            return sorted(os.path.relpath(name, path) for name in known.stdout.split())
        return sorted(os.listdir(os.path.join(self.root, path)))
