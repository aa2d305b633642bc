"""What comms, contexts and plans share: a handle of the library that is closed once."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from . import raw
from .errors import Error, error_of

HandleT = TypeVar("HandleT", bound="Handle")


class Handle:
    """Owns one handle. ``close()`` frees it; so does the end of a ``with`` block, and garbage collection.

    Use after ``close()`` raises :class:`liblasp.InvalidHandle`; closing twice does nothing. A handle belongs to its
    process and is not copied or pickled.
    """

    _handle: Any = None
    _kind = "handle"
    _instead = ""  # of copying it

    @staticmethod
    def _destroy(handle: Any) -> None:
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._handle is None

    @property
    def handle(self) -> Any:
        """The raw layer's handle, for functions of :mod:`liblasp.raw`."""
        handle = self._handle
        if handle is None:
            raise error_of(raw.LASP_ERROR_INVALID_HANDLE, f"{self._kind}: it is closed")
        return handle

    def close(self) -> None:
        """Frees the handle. Raises :class:`liblasp.InvalidArgument` (LASP_ERROR_IN_USE) while it is in use."""
        handle = self._handle
        if handle is not None:
            self._destroy(handle)
            self._handle = None

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Copying and pickling are refused."""
        raise TypeError(f"a lasp.{type(self).__name__} cannot be copied or pickled, because it holds a handle of this "
                        f"process: {self._instead}")

    def __enter__(self: HandleT) -> HandleT:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except (Error, TypeError, AttributeError):  # in use by another thread, or the interpreter is ending
            pass
