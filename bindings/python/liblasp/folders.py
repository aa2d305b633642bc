"""Where the files are that a C or C++ program is built with: the header, and the library in use."""

from __future__ import annotations

import os

from . import raw

__all__ = ["get_include", "get_library_dir"]


def get_library_dir() -> str:
    """The folder of the liblasp in use: what a linker's ``-L`` takes, and a program's rpath. Below it lie
    ``pkgconfig/lasp.pc`` and ``cmake/lasp``. Raises FileNotFoundError where the loader cannot tell. Since 0.2."""
    path = raw.library_path()
    if not path:
        raise FileNotFoundError("the loader does not tell where the liblasp in use lies")
    return os.path.dirname(os.path.realpath(path))


def get_include() -> str:
    """The folder that has ``lasp/lasp.h`` of the liblasp in use: what a compiler's ``-I`` takes. Raises
    FileNotFoundError where the header was not installed with the library. Since 0.2."""
    library = get_library_dir()
    for above in ("..", os.path.join("..", "..")):  # the latter: Debian's lib/x86_64-linux-gnu
        folder = os.path.normpath(os.path.join(library, above, "include"))
        if os.path.exists(os.path.join(folder, "lasp", "lasp.h")):
            return folder
    raise FileNotFoundError(f"the header lasp/lasp.h was not installed with the liblasp in use, {raw.library_path()}")
