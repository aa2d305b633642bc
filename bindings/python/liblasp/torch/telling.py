"""How far a long step has come."""
from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Union

from liblasp.arguments import describe

from .problem import invalid_argument


@contextlib.contextmanager
def passes_told(progress: Union[bool, Callable[[int, int], Any], None], total: int) -> Iterator[Callable[[], None]]:
    """A function to be called after each of `total` passes: it tells `progress`, or draws a bar."""
    if progress is True:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            raise invalid_argument("progress = True: the bar needs the package tqdm; give a function instead") from None
        with tqdm(total=total, desc="segments", unit="pass") as bar:
            yield bar.update
        return
    if progress is not None and progress is not False and not callable(progress):
        raise invalid_argument(f"progress = {describe(progress)}: must be a function, True or None")
    done = 0

    def passed() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)
    yield passed
