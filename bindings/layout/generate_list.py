#!/usr/bin/env python3
"""Writes layout_list.inc, the list of all that lasp.h declares, out of the header's text.

    generate_list.py HEADER OUTPUT          writes the list
    generate_list.py --check HEADER LIST    says whether the list still is what the header gives
"""

import difflib
import sys

from lasp_header import HeaderError, parse

HEAD = """/* Everything that lasp.h declares, as macro calls: what is listed here the compiler then measures (lasp_layout.c).
 * Made by generate_list.py from lasp.h; not edited by hand. After a change of the header: make it anew.
 *
 *     LAYOUT_CONSTANT(name, group)  LAYOUT_HANDLE(name)  LAYOUT_ALIAS(name, type, (pointer to it))
 *     LAYOUT_STRUCT(name, init macro or LAYOUT_NO_INIT)  LAYOUT_FIELD(struct, field, type, (pointer to it))
 *     LAYOUT_FUNCTION(name, returns, (pointer to it))    LAYOUT_PARAMETER(function, name, type)
 *
 * A pointer is a declaration of `p`, for the compiler to compare with what the header says. */
"""


def pointer_to(c_type):
    """A declaration of `p`, a pointer to the type: the compiler refuses to let it point to any other."""
    if "(*)" in c_type:
        return c_type.replace("(*)", "(**p)")
    if c_type.endswith("]"):
        base, extent = c_type[:-1].split("[")
        return f"{base} (*p)[{extent}]"
    return f"{c_type}*p" if c_type.endswith("*") else f"{c_type} *p"


def list_text(header):
    lines = [HEAD.rstrip("\n")]
    lines += [f"LAYOUT_CONSTANT({c.name}, {c.group})" for c in header.constants]
    lines += [f"LAYOUT_HANDLE({name})" for name in header.handles]
    lines += [f'LAYOUT_ALIAS({a.name}, "{a.type}", ({pointer_to(a.type)}))' for a in header.aliases]
    for struct in header.structs:
        lines.append(f"LAYOUT_STRUCT({struct.name}, {struct.init_macro or 'LAYOUT_NO_INIT'})")
        lines += [
            f'LAYOUT_FIELD({struct.name}, {f.name}, "{f.type}", ({pointer_to(f.type)}))' for f in struct.fields
        ]
    for function in header.functions:
        types = ", ".join(p.type for p in function.parameters) or "void"
        returns = function.returns if function.returns.endswith("*") else function.returns + " "
        lines.append(f'LAYOUT_FUNCTION({function.name}, "{function.returns}", ({returns}(*p)({types})))')
        lines += [f'LAYOUT_PARAMETER({function.name}, {p.name}, "{p.type}")' for p in function.parameters]
    return "\n".join(lines) + "\n"


def main(arguments):
    check = arguments[:1] == ["--check"]
    header_path, list_path = arguments[1:] if check else arguments
    with open(header_path, encoding="utf-8") as file:
        try:
            made = list_text(parse(file.read()))
        except HeaderError as error:
            sys.exit(f"{header_path}: {error}")
    if not check:
        with open(list_path, "w", encoding="utf-8") as file:
            file.write(made)
        return
    with open(list_path, encoding="utf-8") as file:
        kept = file.read()
    if kept != made:
        sys.stdout.writelines(difflib.unified_diff(kept.splitlines(True), made.splitlines(True), list_path, "made"))
        sys.exit(f"{list_path} is not what {header_path} gives: make it anew with generate_list.py")
    print(f"{made.count(chr(10))} lines, as made from the header")


if __name__ == "__main__":
    main(sys.argv[1:])
