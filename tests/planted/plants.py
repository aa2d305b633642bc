"""The lists of planted mistakes: how they are written, read, and applied to a copy of the tree.

A list is a file of this folder, *.txt. One mistake is a name at the beginning of a line and, indented by two below it,

    in     the file, from the top of the repository
    first  the tests that are to find it, a regular expression over CTest's names; may be repeated
    - old text, one line for each of its lines
    + new text, likewise

Old and new text are what follows "- " and "+ " as it stands. The old text must be in the file exactly once, or the entry is
stale; the indentation of its first line may be left out. Lines that begin with # are comments.
"""

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path


class ListError(Exception):
    """An entry that is no mistake: badly written, or its old text is not in the file exactly once."""


@dataclass
class Plant:
    area: str  # the list
    name: str
    file: str = ""
    first: list = field(default_factory=list)
    old: list = field(default_factory=list)
    new: list = field(default_factory=list)

    def where(self, root):
        """The offset of the old text in the file under `root`, and the file's text."""
        path = Path(root, self.file)
        if not path.is_file():
            raise ListError(f"{self.area}: {self.name}: there is no {self.file}")
        text, old = path.read_text(), "\n".join(self.old)
        count = text.count(old)
        if count != 1:
            raise ListError(f"{self.area}: {self.name}: stale, its old text is {count} times in {self.file}: {old.strip()}")
        return text.index(old), text

    def line(self, root):
        at, text = self.where(root)
        return text.count("\n", 0, at) + 1

    def apply(self, root):
        """Plants the mistake; returns a function that takes it back."""
        at, text = self.where(root)
        path = Path(root, self.file)
        path.write_text(text[:at] + "\n".join(self.new) + text[at + len("\n".join(self.old)):])
        return lambda: path.write_text(text)

    def digest(self):
        """Changes with the mistake, so that a result of another one is not taken for its."""
        return hashlib.sha256(repr((self.name, self.file, self.old, self.new)).encode()).hexdigest()[:16]

    def check(self):
        for what, there in (("in", self.file), ("first", self.first), ("- old text", self.old), ("+ new text", self.new)):
            if not there:
                raise ListError(f"{self.area}: {self.name} has no line '{what}'")
        if self.old == self.new:
            raise ListError(f"{self.area}: {self.name} changes nothing")
        for pattern in self.first:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ListError(f"{self.area}: {self.name}: first {pattern}: {error}") from None


def read_list(path):
    """All mistakes of one list."""
    plants = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            plants.append(Plant(path.stem, line.strip()))
            continue
        key, text = line[2:4], line[4:]
        word, _, value = line.strip().partition(" ")
        if not plants:
            raise ListError(f"{path.name}:{number}: comes before the first name")
        if key.strip() == "-":
            plants[-1].old.append(text)
        elif key.strip() == "+":
            plants[-1].new.append(text)
        elif word == "in":
            plants[-1].file = value.strip()
        elif word == "first":
            plants[-1].first.append(value.strip())
        else:
            raise ListError(f"{path.name}:{number}: neither in, first, - nor +: {line.strip()}")
    return plants


def read_all(folder):
    """The mistakes of all lists, and what is wrong with lists and entries, by name."""
    plants, errors, names = [], [], set()
    for path in sorted(Path(folder).glob("*.txt")):
        try:
            entries = read_list(path)
        except ListError as error:
            errors.append(str(error))
            continue
        for plant in entries:
            try:
                plant.check()
                if plant.name in names:
                    raise ListError(f"{plant.area}: {plant.name} is there twice")
            except ListError as error:
                errors.append(str(error))
                continue
            names.add(plant.name)
            plants.append(plant)
    return plants, errors
