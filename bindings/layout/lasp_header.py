"""Reads lasp.h: every declaration in it, in order, as plain data.

This is no C parser. It knows the forms that the header uses and refuses everything else, so that nothing in the
header can go by unseen: what is not recognised is an error with its text.
"""

import re
from collections import namedtuple

# `type` is C as one writes it in a cast: "int64_t", "const char *", "double[5]", "void (*)(void *, int32_t)".
Field = namedtuple("Field", "name type")
Struct = namedtuple("Struct", "name fields init_macro")  # init_macro: None where the header has none
Constant = namedtuple("Constant", "name group")  # group: the enum's name, or "macro"
Function = namedtuple("Function", "name returns parameters")  # parameters: Fields
Alias = namedtuple("Alias", "name type")
Header = namedtuple("Header", "constants structs functions aliases handles")

IDENTIFIER = r"[A-Za-z_]\w*"


class HeaderError(Exception):
    """The header holds something that this reader does not know."""


def parse(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = text.replace("\\\n", " ")
    text, macros, init_macros = _take_directives(text)
    text = re.sub(r'extern\s+"C"\s*\{', " ", text)
    declarations = [" ".join(part.split()) for part in _statements(text)]
    header = Header(macros, [], [], [], [])
    for declaration in declarations:
        _declaration(declaration, header)
    return _with_init_macros(header, init_macros)


def _take_directives(text):
    """Splits the preprocessor's lines off: integer macros and the names of INIT macros are kept."""
    kept, macros, inits, skipping = [], [], [], 0
    for line in text.split("\n"):
        stripped = line.strip()
        if not stripped.startswith("#"):
            if not skipping:
                kept.append(line)
            continue
        directive = stripped[1:].strip()
        if re.match(r"(ifdef|if|ifndef)\b", directive):
            # Only what C sees without any macro is read: __cplusplus parts are no declarations of their own.
            skipping += 1 if skipping or "__cplusplus" in directive else 0
        elif directive.startswith("endif"):
            skipping -= 1 if skipping else 0
        elif match := re.match(rf"define\s+({IDENTIFIER})\s*(.*)$", directive):
            _macro(match.group(1), match.group(2).strip(), macros, inits)
        elif not re.match(r"(else|elif|include)\b", directive):
            raise HeaderError(f"unknown directive: {stripped}")
    return "\n".join(kept), macros, inits


def _macro(name, value, macros, inits):
    if name == "LASP_API" or value == "":  # how a function is exported; the include guard
        return
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", value):
        macros.append(Constant(name, "macro"))
    elif name.endswith("_INIT") and value.startswith("{"):
        inits.append(name)
    else:
        raise HeaderError(f"macro of an unknown form: {name} {value}")


def _statements(text):
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == ";" and depth == 0:
            yield text[start:at]
            start = at + 1
    if text[start:].strip(" \n}"):
        raise HeaderError(f"unfinished: {text[start:].strip()}")


def _declaration(text, header):
    if match := re.fullmatch(rf"enum ({IDENTIFIER}) \{{(.*)\}}", text):
        for item in filter(None, (part.strip() for part in match.group(2).split(","))):
            name = re.fullmatch(rf"({IDENTIFIER}) = -?(0x[0-9a-fA-F]+|\d+)", item)
            if not name:
                raise HeaderError(f"enum member without a value of its own: {item}")
            header.constants.append(Constant(name.group(1), match.group(1)))
    elif match := re.fullmatch(rf"typedef struct ({IDENTIFIER}) \{{(.*)\}} ({IDENTIFIER})", text):
        if match.group(1) != match.group(3):
            raise HeaderError(f"struct {match.group(1)} is also called {match.group(3)}")
        header.structs.append(Struct(match.group(1), _fields(match.group(2)), None))
    elif match := re.fullmatch(rf"typedef struct ({IDENTIFIER}) ({IDENTIFIER})", text):
        header.handles.append(match.group(2))
    elif match := re.fullmatch(r"typedef (.*)", text):
        header.aliases.append(Alias(*_declarator(match.group(1))))
    elif match := re.fullmatch(rf"LASP_API (.*?)({IDENTIFIER})\((.*)\)", text):
        returns = _type(match.group(1))
        header.functions.append(Function(match.group(2), returns, _parameters(match.group(3))))
    elif not re.fullmatch(rf"struct {IDENTIFIER}", text):
        raise HeaderError(f"unknown declaration: {text}")


def _fields(text):
    fields = []
    for statement in filter(None, (part.strip() for part in text.split(";"))):
        if "(" in statement:
            fields.append(Field(*_declarator(statement)))
            continue
        first, *more = statement.split(",")
        base = re.match(rf"(.*?)(\**\s*{IDENTIFIER}\s*(\[\d+\])?)$", first.strip())
        for declarator in [base.group(2)] + more:
            fields.append(Field(*_declarator(f"{base.group(1)} {declarator.strip()}")))
    return fields


def _declarator(text):
    """One declaration, "double predicted_us[5]", as its name and type."""
    if match := re.fullmatch(rf"(.*?)\(\*\s*({IDENTIFIER})\)\s*\((.*)\)", text):
        parameters = ", ".join(p.type for p in _parameters(match.group(3))) or "void"
        return match.group(2), f"{_type(match.group(1))} (*)({parameters})"
    match = re.fullmatch(rf"(.*?)({IDENTIFIER})\s*(\[\d+\])?", text.strip())
    if not match or not match.group(1).strip():
        raise HeaderError(f"not a declaration: {text}")
    return match.group(2), _type(match.group(1)) + (match.group(3) or "")


def _parameters(text):
    if text.strip() == "void":
        return []
    return [Field(*_declarator(part)) for part in text.split(",")]


def _type(text):
    text = " ".join(text.replace("*", " * ").split())
    if not re.fullmatch(rf"(const )?(struct )?{IDENTIFIER}( const)?(( \*)+)?", text):
        raise HeaderError(f"unknown type: {text}")
    return text.replace("* *", "**")


def _with_init_macros(header, init_macros):
    by_struct = {name[: -len("_INIT")].lower(): name for name in init_macros}
    structs = [struct._replace(init_macro=by_struct.pop(struct.name, None)) for struct in header.structs]
    if by_struct:
        raise HeaderError(f"INIT macros of no struct: {', '.join(sorted(by_struct.values()))}")
    return header._replace(structs=structs)
