"""The package of LASP's authors is named lasp: both are installed and imported side by side, in either order."""
import os
import subprocess
import sys

import pytest

PACKAGES = os.path.dirname(os.path.dirname(os.path.abspath(__import__("liblasp").__file__)))
PROGRAM = """
import importlib.metadata, sys
import numpy as np
{imports}
assert lasp.lightning_attention() == "another's" and lasp.__file__.startswith({folder!r})
assert importlib.metadata.version("lasp") == "7.0"
x = np.ones((1, 3, 1, 8), np.float32)
with liblasp.Context(cpu_threads=1) as context:
    o = context.plan(liblasp.Problem.like(x, x, x, scale=1.0)).forward(x, x, x)
assert (o[0, :, 0, 0] == [8, 16, 24]).all()
theirs = {{"lasp", "lasp.comm"}}
assert {{name for name in sys.modules if name.split(".")[0].lstrip("_") == "lasp"}} == theirs
"""


@pytest.mark.parametrize("imports", ("import lasp, lasp.comm, liblasp", "import liblasp, lasp, lasp.comm"))
def test_both_are_imported(tmp_path, imports):
    package, told = tmp_path / "lasp", tmp_path / "lasp-7.0.dist-info"  # as an installer leaves them
    package.mkdir()
    told.mkdir()
    (package / "__init__.py").write_text("def lightning_attention():\n    return \"another's\"\n")
    (package / "comm.py").write_text("")
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: lasp\nVersion: 7.0\n")
    program = PROGRAM.format(imports=imports, folder=str(tmp_path))
    for path in ((str(tmp_path), PACKAGES), (PACKAGES, str(tmp_path))):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(path)})
        assert done.returncode == 0, done.stderr
