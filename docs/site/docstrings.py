"""The Python package's docstrings as Markdown: they are written to be read in a terminal, with Sphinx's roles."""
import re

import griffe

ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):`~?([^`]+)`")
COLUMNS = re.compile(r"^(\S+(?:, \S+)*) {2,}(\S.*)$")  # a name, blanks, what it is
NAMED = re.compile(r"^(\w+(?:, \w+)*): (\S.*)$")  # parameters, and what they are
NEXT = re.compile(r"\. (\w+(?:, \w+)*): ")


class Docstrings(griffe.Extension):
    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            names = {each.name for each in getattr(obj, "parameters", ())}
            obj.docstring.value = markdown(obj.docstring.value, names)

    # What has members has them, and its own docstring, only now.
    def on_module_members(self, *, mod, **kwargs):
        self.on_object(obj=mod)

    def on_class_members(self, *, cls, **kwargs):
        self.on_object(obj=cls)


def row_of(line, names):
    if found := COLUMNS.match(line):
        return found
    found = NAMED.match(line)
    return found if found and set(found[1].split(", ")) <= names else None


def markdown(text, names):
    """The docstring with its rows of names as a list. Nothing is left to change in what it returns."""
    lines, listed = [], False
    for line in ROLE.sub(r"`\1`", text).split("\n"):
        row = row_of(line, names)
        if row:
            lines += ([] if listed else [""]) + [f"- **{row[1]}** {row[2]}"]
        elif listed and line.strip():  # goes on
            lines[-1] += " " + line.strip()
        else:
            lines.append(re.sub(r"::$", ":", line))
        listed = row is not None or (listed and line.strip() != "")
    lines = [split(line, names) if line.startswith("- **") else line for line in lines]
    return re.sub(r"(?<![\w`_])(__\w+__)(?![\w`_])", r"`\1`", "\n".join(lines))


def split(item, names):
    """An item for each of the names that a row has."""
    def begin(found):
        return f".\n- **{found[1]}** " if set(found[1].split(", ")) <= names else found[0]
    return NEXT.sub(begin, item)
