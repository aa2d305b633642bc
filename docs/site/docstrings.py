"""The Python package's docstrings as Markdown: they are written to be read in a terminal, with Sphinx's roles."""
import re

import griffe

ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):`~?([^`]+)`")
COLUMNS = re.compile(r"^(\S+(?:, \S+)*) {2,}(\S.*)$")  # a name, blanks, what it is


class Docstrings(griffe.Extension):
    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_module_members(self, *, mod, **kwargs):  # a module's own is there only when its members are
        self.on_object(obj=mod)


def markdown(text):
    text = ROLE.sub(r"`\1`", text)
    lines, listed = [], False
    for line in text.split("\n"):
        if row := COLUMNS.match(line):
            if not listed:
                lines.append("")
            lines.append(f"- **{row[1]}** {row[2]}".replace("_", r"\_"))
        elif listed and line.startswith("  ") and line.strip():  # goes on
            lines[-1] += " " + line.strip()
            continue
        else:
            if listed and line.strip():
                lines.append("")
            lines.append(re.sub(r"::$", ":", line))
        listed = row is not None
    return re.sub(r"(?<![\w`_])(__\w+__)(?![\w`_])", r"`\1`", "\n".join(lines))
