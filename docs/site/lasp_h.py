"""The reference of the C interface, from lasp.h: every declaration with the comment above it, in the header's order.

What is declared comes from bindings/layout/lasp_header.py, which refuses what it does not know. This file adds the
comments: it knows where the header puts them, and refuses a declaration without one and a function that does not say
since when it exists or which errors it returns. Errors that many functions share are lists in the header's conventions,
each with a name; under a function that names a list the page repeats it."""
import os
import re
import sys

import comments

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "bindings", "layout"))
import lasp_header

HEADER = "capi/include/lasp/lasp.h"
SECTION = re.compile(r"/\* -{3,} (.+?) -{3,} \*/")
SINCE = re.compile(r"Since (\d+\.\d+)")
ERROR = re.compile(r"LASP_ERROR_\w+")
ERROR_LIST = re.compile(r"the (usual|context|group|buffer) errors")
CANNOT_FAIL = "cannot fail"
HANDLES = ("lasp_comm", "lasp_context", "lasp_plan", "lasp_halo")


class Entry:
    """A declaration as the page shows it: what C says, and what the comment says."""

    def __init__(self, code, comment, name):
        self.code, self.comment, self.name = code, comment, name


def entries(text):
    """(section, [comment or Entry ...]) of the header. A comment that no declaration follows at once stands alone."""
    lines = text.split("\n")
    found, at = [("", [])], 0
    while at < len(lines):
        line = lines[at]
        if match := SECTION.match(line):
            found.append((match[1].strip(), []))
            at += 1
        elif line.startswith("/*"):
            end = next(i for i in range(at, len(lines)) if "*/" in lines[i])
            found[-1][1].append(("\n".join(lines[at:end + 1]), end))
            at = end + 1
        elif re.match(r"typedef|enum|LASP_API|#define LASP_\w+_INIT|#define LASP_\w+ \d|struct", line):
            end = _end(lines, at)
            found[-1][1].append((Entry("\n".join(lines[at:end + 1]), None, _name(lines[at:end + 1])), at))
            at = end + 1
        else:
            at += 1
    return [(title, _joined(items)) for title, items in found]


def _end(lines, at):
    if lines[at].startswith("#"):
        return next(i for i in range(at, len(lines)) if not lines[i].endswith("\\"))
    depth = 0
    for number in range(at, len(lines)):
        code = re.sub(r"/\*.*?(\*/|$)", "", lines[number])
        depth += code.count("{") - code.count("}")
        if depth == 0 and code.rstrip().endswith(";"):
            return number
    raise ValueError(f"lasp.h:{at + 1}: this declaration does not end")


def _name(lines):
    first = " ".join(lines)
    if match := re.match(r"(?:enum|typedef struct|#define) (\w+)( \{| \d+$|;| \w+;|$)", first):
        return match[1]
    return re.search(r"(\w+)\)?\(", first)[1] if "(" in first else re.search(r"(\w+);", first)[1]


def _joined(items):
    """Each declaration with the comment that ends on the line above it; functions in a row share one."""
    joined, comment, comment_ends, below = [], None, -1, -1
    for item, line in items:
        if isinstance(item, str):
            joined.append(item)
            comment, comment_ends, below = item, line, line + 1
        else:
            if line == below and comment is not None:
                if line == comment_ends + 1 or "LASP_API" in item.code:
                    item.comment = comment
                if joined and joined[-1] is comment:
                    joined.pop()
                below = line + item.code.count("\n") + 1
            joined.append(item)
    return joined


def page(text):
    header = lasp_header.parse(text)
    known = {each.name for each in [*header.functions, *header.structs, *header.aliases]} | set(header.handles)
    known |= {each.group for each in header.constants} - {"macro"}
    constants = {each.name: each.group for each in header.constants}
    render = comments.Renderer(known, constants)
    collective = _listed(text, r"Collective calls \((.*?)\) are")
    anywhere = _listed(text, r"(lasp_context_get_async_error and lasp_context_abort) may be called from any")
    lists = _error_lists(text)
    sized = {each.name for each in header.structs if each.fields[0].name == "size"}
    out, shown = ["---\ntitle: lasp.h\n---\n\n# The C interface: lasp.h\n"], set()
    functions = {each.name: each for each in header.functions}
    for title, items in entries(text):
        if title:
            out.append(f"## {title[0].upper() + title[1:]}\n")
        for item in items:
            if isinstance(item, str):
                out.append(render.text(item))
                continue
            name = item.name
            shown.add(name)
            if name in functions:
                out.append(_function(item, functions[name], render, collective, anywhere, lists, sized))
            elif item.code.startswith("enum"):
                out.append(f"### {name} {{ #{name} }}\n\n" + render.text(item.comment) + render.enum(item.code))
            elif "{" in item.code and item.code.startswith("typedef"):
                struct = next(s for s in header.structs if s.name == name)
                out.append(f"### {name} {{ #{name} }}\n\n" + render.text(item.comment) + render.struct(item.code, struct))
            elif name in constants and item.comment:  # the first of some numbers, under one comment
                numbers = "\n".join(each.code for each in items if isinstance(each, Entry) and each.name in constants)
                out.append(f"```c\n{numbers}\n```\n\n" + render.text(item.comment))
            elif item.code.startswith("typedef struct") and name in header.handles:
                out.append(f"### {name} {{ #{name} }}\n\nA handle. `{item.code}`\n")
            elif item.code.startswith("typedef"):
                out.append(f"### {name} {{ #{name} }}\n\n```c\n{item.code}\n```\n\n" + render.text(item.comment))
    missing = known - shown
    if missing:
        raise ValueError(f"lasp.h: not on its page: {', '.join(sorted(missing))}")
    made = "\n".join(out).replace("\nConventions, true", "\n## Conventions\n\nTrue", 1)
    for name in lists:
        title = f"- **{name.capitalize()} errors.**"
        made = made.replace(title, title.replace("- ", f'- <span id="{name}_errors"></span>'), 1)
    return made


def _error_lists(text):
    """The conventions' lists of errors that functions share: {name: statuses}. One may be built on another."""
    lists = {}
    for line in re.sub(r"\n \*   ", " ", text[:text.index("*/")]).split("\n"):
        if found := re.match(r" \* - (\w+) errors\. ", line):
            base = re.search(r"The (\w+) errors, and these", line)
            statuses = [*(lists[base[1].lower()] if base else []), *ERROR.findall(line)]
            lists[found[1].lower()] = list(dict.fromkeys(statuses))
    missing = {"usual", "context", "group", "buffer"} - set(lists)
    if missing:
        raise ValueError(f"lasp.h: the conventions have no list of these errors: {', '.join(sorted(missing))}")
    return lists


def _listed(text, pattern):
    found = re.search(pattern, text.replace("\n *", " "), re.S)
    if not found:
        raise ValueError(f"lasp.h: the conventions no longer say: {pattern}")
    return set(re.findall(r"lasp_\w+", found[1]))


def errors_of(comment, name, lists, known):
    """(every error that the function returns, the lists that its comment names); None: it cannot fail. What it returns
    stands behind the first list that it names; before that a status may be another call's."""
    words = " ".join(re.sub(r"\n \*", " ", comment).split())
    first = ERROR_LIST.search(words)
    named = list(dict.fromkeys(ERROR_LIST.findall(words)))
    if CANNOT_FAIL in words:
        if first:
            raise ValueError(f"lasp.h: {name} {CANNOT_FAIL}, and returns {first[0]}")
        return None
    returned = set(ERROR.findall(words[first.start() if first else 0:])).union(*(lists[each] for each in named))
    if not returned:
        raise ValueError(f"lasp.h: {name} does not say which errors it returns, or that it {CANNOT_FAIL}")
    if unknown := returned - set(known):
        raise ValueError(f"lasp.h: {name} returns {', '.join(sorted(unknown))}, which is no status")
    return returned, named


def _linked(words):
    """Names of lists of errors as links to them."""
    return ERROR_LIST.sub(r"[\g<0>](#\1_errors)", words)


def _function(entry, function, render, collective, anywhere, lists, sized):
    if not entry.comment:
        raise ValueError(f"lasp.h: {function.name} has no comment")
    since = SINCE.findall(entry.comment)
    if not since:
        raise ValueError(f"lasp.h: {function.name} does not say since when it exists")
    errors = errors_of(entry.comment, function.name, lists, render.constants)
    signature = entry.code.replace("LASP_API ", "").replace("\n" + " " * len("LASP_API "), "\n")
    kinds = [each for each in HANDLES if any(re.search(rf"\b{each} \*$", p.type) for p in function.parameters)]
    structs = any(re.search(r"(\w+) \*$|$", p.type)[1] in sized or p.name == "size" for p in function.parameters)
    facts = []
    parameters = [p for p in function.parameters if p.type != "lasp_stream"]
    if parameters:
        facts.append(("Parameters", ", ".join(f"`{p.name}`: {render.type(p.type)}" for p in parameters)))
    if function.name in anywhere or re.search(r"[Ff]rom any\s+(\*\s+)?thread", entry.comment):
        threads = "any thread, at any time"
    elif kinds:
        threads = "one at a time for a context, its plans, halos and comm"
    else:
        threads = "any thread"
    if function.name in collective:
        threads += "; **collective**: every rank of the group makes this call, in the same order"
    facts.append(("Threads", threads))
    if any(p.type == "lasp_stream" for p in function.parameters):
        returns = "as said above" if "`stream`" in entry.comment else "the call orders its work there and returns at once"
        facts.append(("Stream", f"on a GPU {returns}; `NULL` on a CPU"))
    if errors is None:
        facts.append(("Errors", "none"))
    else:
        # In the order of the header, which is that of their numbers.
        impossible = {"LASP_ERROR_INVALID_HANDLE": not kinds, "LASP_ERROR_INVALID_STRUCT": not structs,
                      "LASP_ERROR_INVALID_ARGUMENT": "; NULL is allowed." in entry.comment}
        said = ", ".join(render.name(each) for each in render.constants
                         if each in errors[0] and not impossible.get(each))
        lists_named = " and ".join(_linked(f"the {each} errors") for each in errors[1])
        facts.append(("Errors", said + (f"; see {lists_named}" if lists_named else "")))
    facts.append(("Since", since[-1]))
    table = "\n".join(f"| {key} | {value} |" for key, value in facts)
    return (f"### {function.name} {{ #{function.name} }}\n\n```c\n{signature}\n```\n\n" +
            _linked(render.text(entry.comment)) + f"\n| {facts[0][0]} | {facts[0][1]} |\n|---|---|\n" +
            "\n".join(table.split("\n")[1:]) + "\n")
