"""lasp.h by SWIG: every function, struct and constant under its C name. The module is generated when the package is
built; a status other than LASP_OK is raised, and what C returns through pointers is returned."""

from typing import Any

def __getattr__(name: str) -> Any: ...
