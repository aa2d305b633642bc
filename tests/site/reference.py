#!/usr/bin/env python3
"""The site's page of lasp.h has every declaration with its comment, and a header that it does not understand is refused.
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
wrong = []


def expect(truth, what):
    if not truth:
        wrong.append(what)


def part_of(name):
    """The page's part about a declaration: from its heading to the next."""
    found = re.search(rf"^### {name} \{{.*?(?=^###? |\Z)", PAGE, re.S | re.M)
    expect(found, f"{name} has no part of the page")
    return found[0] if found else ""


def plain(text):
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return re.sub(r"\s+", " ", re.sub(r"[\\`*]|\[|\]\(#\w+\)|\]", "", text))


for function in HEADER.functions:
    part = part_of(function.name)
    expect(f"{function.name}(" in part.split("```")[1], f"{function.name}: its signature is not there")
    expect(re.search(r"\| Since \| \d", part), f"{function.name}: since when is not there")
    expect("Threads |" in part, f"{function.name}: its thread rule is not there")
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
        ("a status that a comment names", part_of("lasp_comm_create_nccl"),
         "`LASP_ERROR_LIBRARY_MISSING`](#lasp_status_values)")):
    expect(is_there in known, f"{what}: {is_there} is not there")
expect("**collective**" not in part_of("lasp_step"), "lasp_step is called collective")

for what, old, new in (
        ("a function without a comment", "/* A group of one. Since 0.1. */\n", "\n"),
        ("a function that does not say since when", "/* A group of one. Since 0.1. */", "/* A group of one. */"),
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
