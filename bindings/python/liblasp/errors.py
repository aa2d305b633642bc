"""Exceptions, one class for each group of statuses of the library."""

from __future__ import annotations

import re
from typing import Any

from . import raw

__all__ = ["Error", "InvalidArgument", "InvalidHandle", "Unsupported", "Disagreement", "ContextFailed",
           "CommFailed", "PeerLost", "Aborted"]


class Error(Exception):
    """A status other than LASP_OK.

    ``status`` is the number, ``name`` the status' name such as ``"LASP_ERROR_PEER_LOST"``, ``str()`` the library's
    sentence. Where a transport written in Python raised, that exception is the ``__cause__``.
    """

    status: int = raw.LASP_ERROR_INTERNAL

    def __init__(self, sentence: str, status: int | None = None):
        super().__init__(sentence)
        if status is not None:
            self.status = status

    @property
    def name(self) -> str:
        """The status' name, such as ``"LASP_ERROR_PEER_LOST"``."""
        return raw.lasp_status_name(self.status)


class InvalidArgument(Error, ValueError):
    """1xx: a mistake in the call, which wrote nothing. Everything lives on, but for a group whose other ranks wait for
    the refused call: they raise PeerLost, and it is broken."""

    status = raw.LASP_ERROR_INVALID_ARGUMENT


class InvalidHandle(InvalidArgument):
    """Use of something that was closed."""

    status = raw.LASP_ERROR_INVALID_HANDLE


class Unsupported(Error):
    """2xx: this build or device cannot do it. No effect; everything lives on."""

    status = raw.LASP_ERROR_UNSUPPORTED


class Disagreement(Error):
    """3xx: the ranks gave different problems, or another rank refused its own. No plan was made on any rank."""

    status = raw.LASP_ERROR_DISAGREEMENT


class ContextFailed(Error):
    """4xx: close the context; after a plan's creation or a pass the comm too: the other ranks see a 5xx."""

    status = raw.LASP_ERROR_INTERNAL


class CommFailed(Error):
    """5xx: close the comm with its contexts and build a new group."""

    status = raw.LASP_ERROR_TRANSPORT


class PeerLost(CommFailed):
    """A rank did not come: late, gone, or its own call was refused or failed. ``rank`` is that rank, or -1 where it is
    not known.

    A transport written in Python raises it from ``wait``.
    """

    status = raw.LASP_ERROR_PEER_LOST

    def __init__(self, sentence: str, status: int | None = None, *, rank: int | None = None):
        super().__init__(sentence, status)
        if rank is None:
            named = re.search(r"\brank (\d+)", sentence)
            rank = int(named.group(1)) if named else -1
        self.rank = rank


class Aborted(CommFailed):
    """This rank or another called abort; a signal's handler ended the call; or, in later calls, one was refused on this
    rank while others waited for it."""

    status = raw.LASP_ERROR_ABORTED


class WrongValues(Error):
    """What a context with ``check_values`` found: NaN, infinity or a decay above 0. The sentence says where. The call
    did its work, and everything lives on."""

    status = raw.LASP_ERROR_VALUES


_BY_STATUS: dict[int, type[Error]] = {
    raw.LASP_ERROR_INVALID_HANDLE: InvalidHandle,
    raw.LASP_ERROR_PEER_LOST: PeerLost,
    raw.LASP_ERROR_ABORTED: Aborted,
}
_BY_GROUP: dict[int, type[Error]] = {
    1: InvalidArgument, 2: Unsupported, 3: Disagreement, 4: ContextFailed, 5: CommFailed,
    6: WrongValues,
}


def error_of(status: int, sentence: str, cause: BaseException | None = None) -> Error:
    """The exception that stands for a status."""
    kind = _BY_STATUS.get(status) or _BY_GROUP.get(status // 100, Error)
    error = kind(sentence, status)
    error.__cause__ = cause
    return error


raw.set_error_hook(error_of)
