"""Why the extension module could not be loaded."""

from __future__ import annotations

import glob
import os
import platform
import re
import sys
from importlib import metadata


def explain(reason: ImportError) -> str:
    """A sentence that names this Python and the modules that are there, which may be another Python's; and the C
    library where it is not the one that the wheel was made for."""
    found = sorted(os.path.basename(path) for path in glob.glob(os.path.join(os.path.dirname(__file__), "_lasp*.so")))
    return (f"liblasp has no extension module for this Python ({sys.implementation.cache_tag}) that can be loaded; its "
            f"folder has {', '.join(found) or 'none'}: {reason}{other_c_library()}")


def other_c_library() -> str:
    """What is wrong with this system's C library for the wheel that was installed; empty where nothing is."""
    try:
        tags = metadata.distribution("liblasp").read_text("WHEEL") or ""
    except metadata.PackageNotFoundError:
        return ""
    needed = re.search(r"manylinux_(\d+)_(\d+)_", tags)
    if not needed:
        return ""
    name, version = platform.libc_ver()
    here = re.match(r"(\d+)\.(\d+)", version) if name == "glibc" else None
    if here and tuple(map(int, here.groups())) >= tuple(map(int, needed.groups())):
        return ""
    return (f". The wheel needs glibc {needed[1]}.{needed[2]} or later, and this system has "
            f"{f'glibc {version}' if here else name or 'another C library'}: build liblasp here instead, by pip install "
            "--no-binary liblasp liblasp")
