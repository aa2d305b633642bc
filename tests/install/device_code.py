"""The GPU code that a library holds, as CMake names architectures: device_code.py LIBRARY prints "80-real 90a-real
80-virtual", or "none". It reads the headers of the fat binaries that nvcc puts into the section .nv_fatbin."""

import struct
import sys

MAGIC, PTX, MACHINE_CODE = 0xBA55ED50, 1, 2
ALONE, FAMILY = 1 << 20, 1 << 21  # flags of an entry: 90a, 100f


def section(path, wanted):
    """The bytes of a section of a 64-bit little-endian ELF file; empty where it has none of this name."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:6] == b"\x7fELF\x02\x01", path
    table, = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<II2Q2Q", data, table + size * i) for i in range(count)]
    for name, *_, begin, length in headers:
        begin_of_name = headers[names][4] + name
        if data[begin_of_name:data.index(b"\0", begin_of_name)].decode() == wanted:
            return data[begin:begin + length]
    return b""


def entries(data):
    """Each piece of code: its kind, the architecture's number, its flags."""
    at = 0
    while at < len(data):
        magic, _, header, length = struct.unpack_from("<IHHQ", data, at)
        if magic == 0:  # filling between two
            at += 8
            continue
        assert magic == MAGIC, f"no fat binary at {at}"
        at += header
        end = at + length
        while at < end:
            kind, _, header, length = struct.unpack_from("<HHIQ", data, at)
            number, = struct.unpack_from("<I", data, at + 28)
            flags, = struct.unpack_from("<Q", data, at + 40)
            yield kind, number, flags
            at += header + length


found = set()
for kind, number, flags in entries(section(sys.argv[1], ".nv_fatbin")):
    suffix = "a" if flags & ALONE else "f" if flags & FAMILY else ""
    found.add((kind != MACHINE_CODE, number, f"{number}{suffix}-{'real' if kind == MACHINE_CODE else 'virtual'}"))
print(" ".join(name for *_, name in sorted(found)) or "none")
