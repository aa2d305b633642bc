#!/usr/bin/env bash
# The conda recipe, read and rendered by rattler-build with variants as conda-forge has them: two packages for each
# Python. Nothing is built. Needs a package index, else skipped.     conda.sh BUILD_DIR JOBS      LASP_PYTHON
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
"${LASP_PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" -q --disable-pip-version-check install py-rattler-build==0.73.0 > "$work/log" 2>&1 ||
  { echo "SKIPPED: pip cannot have py-rattler-build here: $(tail -1 "$work/log")"; exit 77; }
"$work/venv/bin/python" - << 'END' || { echo "FAILED: the recipe"; exit 1; }
from rattler_build import Stage0Recipe, VariantConfig

pythons = ["3.11", "3.13"]
variants = VariantConfig({"c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"],
                          "python": [f"{python}.* *_cpython" for python in pythons]})
made = [each.recipe.to_dict() for each in Stage0Recipe.from_file("packaging/conda/recipe.yaml").render(variants)]
libraries = {each["build"]["string"] for each in made if each["package"]["name"] == "liblasp"}
bindings = {each["build"]["string"][:5] for each in made if each["package"]["name"] == "liblasp-python"}
assert len(libraries) == 1 and "py" not in libraries.pop(), "the library depends on Python"
assert bindings == {"py" + python.replace(".", "") for python in pythons}, bindings
for each in made:
    assert each["requirements"]["build"][:2] == ["gcc_linux-64", "gxx_linux-64"], each["requirements"]
    assert each["tests"] and each["build"]["script"], each
END
echo "rattler-build renders the conda recipe: liblasp, and liblasp-python for each Python"
