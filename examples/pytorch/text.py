"""Text that stands alone: the licences that every Debian system has, or a file. A window follows from seed, step
and its number in the batch, so that any number of ranks sees the same data."""
import hashlib
import pathlib

import torch

LICENCES = "/usr/share/common-licenses"


class Text:
    def __init__(self, path=None):
        files = [pathlib.Path(path)] if path else sorted(
            file for file in pathlib.Path(LICENCES).glob("*") if file.is_file() and not file.is_symlink())
        try:
            data = b"".join(file.read_bytes() for file in files)
        except OSError as reason:
            raise SystemExit(f"--text: {reason}") from None
        if len(data) < 2:
            raise SystemExit(f"There is no text in {LICENCES}; name one with --text FILE.")
        self.bytes = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def window(self, seed, step, number, length):
        digest = hashlib.blake2b(f"{seed} {step} {number}".encode(), digest_size=8).digest()
        begin = int.from_bytes(digest, "little") % len(self.bytes)
        return self.bytes[(torch.arange(length) + begin) % len(self.bytes)].long()

    def batch(self, seed, step, first, count, length):
        """Windows first .. first + count - 1 of a step's global batch: [count, length]."""
        return torch.stack([self.window(seed, step, first + i, length) for i in range(count)])
