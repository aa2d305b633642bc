#!/usr/bin/env python3
"""The site's page of lasp.h has every declaration with its comment, and every function with the errors that it returns. A
header that the page's maker does not understand is refused, and so is a function that does not say its errors.
    reference.py SOURCE_DIR"""
import os
import re
import sys

root = os.path.realpath(sys.argv[1])
sys.path.insert(0, os.path.join(root, "docs", "site"))
sys.dont_write_bytecode = True
import lasp_h
import lasp_header

with open(os.path.join(root, lasp_h.HEADER), encoding="utf-8") as opened:
    TEXT = opened.read()
try:
    PAGE = lasp_h.page(TEXT)
except ValueError as reason:
    sys.exit(str(reason))
HEADER = lasp_header.parse(TEXT)
# The functions that return no error. All others say what they return: in words of their own, or by a list.
CANNOT_FAIL = {"lasp_last_error", "lasp_set_last_error", "lasp_status_name", "lasp_version"}
wrong = []


def expect(truth, what):
    if not truth:
        wrong.append(what)


def part_of(name):
    """The page's part about a declaration: from its heading to the next."""
    found = re.search(rf"^### {name} \{{.*?(?=^###? |\Z)", PAGE, re.S | re.M)
    expect(found, f"{name} has no part of the page")
    return found[0] if found else ""


def errors_of(name):
    found = re.search(r"^\| Errors \| .*", part_of(name), re.M)
    return found[0] if found else ""


def plain(text):
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return re.sub(r"\s+", " ", re.sub(r"[\\`*]|\[|\]\(#\w+\)|\]", "", text))


for function in HEADER.functions:
    part = part_of(function.name)
    expect(f"{function.name}(" in part.split("```")[1], f"{function.name}: its signature is not there")
    expect(re.search(r"\| Since \| \d", part), f"{function.name}: since when is not there")
    expect("Threads |" in part, f"{function.name}: its thread rule is not there")
    errors = re.search(r"^\| Errors \| (.*) \|$", part, re.M)
    expect(errors and (errors[1] == "none") == (function.name in CANNOT_FAIL),
           f"{function.name}: the errors that it returns are not there")
    for parameter in function.parameters:
        expect(parameter.name in part, f"{function.name}: {parameter.name} is not there")
for struct in HEADER.structs:
    part = part_of(struct.name)
    for field in struct.fields:
        expect(f"`{field.name}`" in part, f"{struct.name}: {field.name} is not there")
for constant in HEADER.constants:
    expect("FORCE_INT32" in constant.name or re.search(rf"\b{constant.name}\b", PAGE), f"{constant.name} is not there")

WORDS = re.sub(r"\s", "", plain(PAGE))
# What every word of a comment says is on the page: nothing is lost on the way.
for comment in re.findall(r"/\*(.*?)\*/", TEXT, re.S):
    words = plain(re.sub(r"\n \*? ?", " ", comment)).strip()
    if "---" in comment or len(words) < 40:
        continue
    for sentence in re.split(r"(?<=[.:;]) ", words):
        expect(re.sub(r"\s", "", plain(sentence)).removeprefix("Conventions,t").removeprefix("-")[:200] in
               WORDS, f"this sentence is not on the page: {sentence}")

for what, known, is_there in (
        ("shapes of the forward pass", part_of("lasp_forward_args"), "`[B,T,Hq,K]`"),
        ("a collective call", part_of("lasp_forward"), "**collective**"),
        ("its stream", part_of("lasp_forward"), "| Stream |"),
        ("a call that is not collective", part_of("lasp_step"), "one at a time for a context"),
        ("a watchdog's call", part_of("lasp_context_abort"), "any thread, at any time"),
        ("a status that a comment names", errors_of("lasp_comm_create_nccl"),
         "`LASP_ERROR_LIBRARY_MISSING`](#lasp_status_values)"),
        ("a status of a list", errors_of("lasp_comm_get_rank"), "`LASP_ERROR_INVALID_HANDLE`](#lasp_status_values)"),
        ("a status of the list on which another is built", errors_of("lasp_step"), "`LASP_ERROR_INVALID_STRUCT`]"),
        ("a status of the second list", errors_of("lasp_forward"), "`LASP_ERROR_BUFFER_TOO_SMALL`]"),
        ("a link to a list", part_of("lasp_forward"), "[the group errors](#group_errors)"),
        ("its list", PAGE, '<span id="group_errors"></span>**Group errors.**')):
    expect(is_there in known, f"{what}: {is_there} is not there")
expect("**collective**" not in part_of("lasp_step"), "lasp_step is called collective")
for name, status in (("lasp_context_abort", "LASP_ERROR_ABORTED"), ("lasp_context_abort", "LASP_ERROR_INVALID_STRUCT"),
                     ("lasp_comm_create_self", "LASP_ERROR_INVALID_HANDLE"),
                     ("lasp_plan_destroy", "LASP_ERROR_INVALID_ARGUMENT")):
    expect(status not in errors_of(name), f"{name}: {status} is there, which it does not return")
expect("| any thread |" in part_of("lasp_comm_create_self"), "lasp_comm_create_self is not for any thread")

ALONE = "/* A group of one. Returns the usual errors. Since 0.1. */"
for what, old, new in (
        ("a function without a comment", f"{ALONE}\n", "\n"),
        ("a function that does not say since when", ALONE, ALONE.replace(" Since 0.1.", "")),
        ("a function that names no error", ALONE, ALONE.replace(" Returns the usual errors.", "")),
        ("a function that cannot fail and returns errors", ALONE, ALONE.replace(" Since", " It cannot fail. Since")),
        ("an error that is none", ALONE, ALONE.replace(" Since", " It returns LASP_ERROR_MADE_UP. Since")),
        ("conventions without a list of errors", "- Buffer errors. ", "- Errors of buffers. "),
        ("conventions without the list of collective calls", "Collective calls (", "Calls of all ranks ("),
        ("a declaration of an unknown form", "LASP_API lasp_status lasp_comm_create_self(lasp_comm **comm);",
         "LASP_API lasp_status lasp_comm_create_self(int (*f[2])(void));")):
    expect(TEXT.count(old) >= 1, f"lasp.h no longer has: {old}")
    try:
        lasp_h.page(TEXT.replace(old, new, 1))
        expect(False, f"{what} was taken")
    except (ValueError, lasp_header.HeaderError):
        pass

print("\n".join(wrong[:20]) if wrong else f"{len(HEADER.functions)} functions and {len(HEADER.structs)} structs are on the page")
sys.exit(1 if wrong else 0)
