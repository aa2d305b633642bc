"""Why the extension module could not be loaded."""

from __future__ import annotations

import glob
import os
import sys


def explain(reason: ImportError) -> str:
    """A sentence that names this Python and the modules that are there, which may be another Python's."""
    found = sorted(os.path.basename(path) for path in glob.glob(os.path.join(os.path.dirname(__file__), "_lasp*.so")))
    return (f"liblasp has no extension module for this Python ({sys.implementation.cache_tag}) that can be loaded; its "
            f"folder has {', '.join(found) or 'none'}: {reason}")
