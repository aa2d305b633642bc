#!/usr/bin/env python3
"""The README's snippets: the C one compiles, and the Python one uses what liblasp.torch has.

usage: readme.py c REPOSITORY CC        readme.py python REPOSITORY

What stands around the C snippet is below: the reader's own variables. A call of liblasp.torch must name keywords that
its
definition has; PyTorch is not needed."""
import ast
import pathlib
import re
import subprocess
import sys

AROUND = """#include <stdio.h>
{includes}
int forward(struct ncclComm *nccl, lasp_stream stream, int64_t tokens, int32_t heads, size_t bytes, const void *q,
            const void *k, const void *v, void *o, void *cache, void *work);
int forward(struct ncclComm *nccl, lasp_stream stream, int64_t tokens, int32_t heads, size_t bytes, const void *q,
            const void *k, const void *v, void *o, void *cache, void *work) {{
#line 1 "the README's C snippet"
{statements}
  return 0;
}}
"""


def snippet(repository, language):
    found = re.findall(rf"^```{language}\n(.*?)^```", (repository / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    if len(found) != 1:
        sys.exit(f"README.md has {len(found)} snippets of {language}, not one")
    return found[0]


def check_c(repository, compiler):
    lines = snippet(repository, "c").splitlines()
    includes = [line for line in lines if line.startswith("#include")]
    statements = [line for line in lines if line not in includes]
    program = AROUND.format(includes="\n".join(includes), statements="\n".join(statements))
    command = [compiler, "-x", "c", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only",
               f"-I{repository / 'capi' / 'include'}", "-"]
    return subprocess.run(command, input=program, text=True).returncode


def definitions(package):
    """The keywords of each function and class (its __init__) of liblasp.torch."""
    found = {}
    for path in package.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            makes = [each for each in getattr(node, "body", []) if getattr(each, "name", "") == "__init__"]
            made = makes[0] if isinstance(node, ast.ClassDef) and makes else node
            if isinstance(made, ast.FunctionDef):
                found[node.name] = {each.arg for each in made.args.args + made.args.kwonlyargs}
    return found


def check_python(repository):
    package = repository / "bindings" / "python" / "liblasp" / "torch"
    public = re.search(r"__all__ = \[(.*?)\]", (package / "__init__.py").read_text(), re.DOTALL).group(1)
    known, wrong = definitions(package), []
    tree = ast.parse(snippet(repository, "python"), "the README's Python snippet")
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "liblasp.torch"]
    imported = {each.name for node in imports for each in node.names}
    wrong += [f"liblasp.torch has no {name}" for name in sorted(imported) if f'"{name}"' not in public]
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = getattr(call.func, "id", None)
        if name in imported:
            wrong += [f"{name} takes no {each.arg}" for each in call.keywords if each.arg not in known.get(name, ())]
    print("\n".join(wrong) or f"{', '.join(sorted(imported))}: as liblasp.torch has them")
    return 1 if wrong or not imported else 0


def main():
    repository = pathlib.Path(sys.argv[2])
    return check_c(repository, sys.argv[3]) if sys.argv[1] == "c" else check_python(repository)


if __name__ == "__main__":
    sys.exit(main())
