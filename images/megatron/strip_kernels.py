"""strip_kernels.py LIBRARY ARCHITECTURE...: blank the GPU code in a shared library that no GPU of these architectures would run.

`strip_kernels.py libtransformer_engine.so 90` serves compute capability 9.0. Offsets stay, so the file keeps its size and links as before;
what was blanked is zeros, which cost nothing in a compressed layer.

Section .nv_fatbin is a row of containers, each a header (magic u32, version u16, header size u16, size of what follows u64) and entries
(kind u16, version u16, header size u32, size u64, ..., architecture u32 at byte 28). They stand at multiples of 8 bytes.
"""

import mmap
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MAGIC = struct.pack("<I", 0xBA55ED50)
PTX, MACHINE_CODE = 1, 2


@dataclass(frozen=True)
class Entry:
    kind: int
    architecture: int
    start: int  # of the code, in the file
    size: int

    def runs_on(self, architecture: int) -> bool:
        """Machine code runs on its own and on later minor versions of the same major one; PTX is compiled for any later one."""
        if self.kind == PTX:
            return self.architecture <= architecture
        return self.architecture <= architecture and self.architecture // 10 == architecture // 10


Image = bytes | bytearray | mmap.mmap


def section(image: Image, name: bytes) -> tuple[int, int]:
    """First and last offset of a section of a 64-bit ELF file. Raises KeyError when there is none."""
    table, size, count, names = struct.unpack_from("<Q10xHHH", image, 40)
    headers = [struct.unpack_from("<IIQQQQ", image, table + i * size) for i in range(count)]
    for key, _, _, _, start, length in headers:
        at = headers[names][4] + key
        if image[at : at + len(name) + 1] == name + b"\0":
            return start, start + length
    raise KeyError(name.decode())


def containers(image: Image, start: int, end: int) -> Iterator[list[Entry]]:
    while (start := image.find(MAGIC, start, end)) >= 0:
        if start % 8:
            start += 1
            continue
        header, size = struct.unpack_from("<6xHQ", image, start)
        yield list(entries(image, start + header, start + header + size))
        start += header + size


def entries(image: Image, start: int, end: int) -> Iterator[Entry]:
    while start < end:
        kind, header, size, architecture = struct.unpack_from("<H2xIQ12xI", image, start)
        yield Entry(kind, architecture, start + header, size)
        start += header + size


def needed(container: Sequence[Entry], architecture: int) -> set[Entry]:
    """Its own machine code; without that, the closest machine code that runs there, and PTX."""
    usable = [entry for entry in container if entry.runs_on(architecture)]
    code = [entry for entry in usable if entry.kind == MACHINE_CODE]
    closest = max((entry.architecture for entry in code), default=None)
    kept = {entry for entry in code if entry.architecture == closest}
    return kept if closest == architecture else kept | {entry for entry in usable if entry.kind == PTX}


def strip(image: bytearray | mmap.mmap, architectures: Sequence[int]) -> tuple[int, int]:
    """Blank in place. Bytes of GPU code kept and blanked."""
    kept = blanked = 0
    for container in containers(image, *section(image, b".nv_fatbin")):
        wanted = set().union(*(needed(container, architecture) for architecture in architectures))
        for entry in container:
            if entry in wanted:
                kept += entry.size
            else:
                image[entry.start : entry.start + entry.size] = bytes(entry.size)
                blanked += entry.size
    return kept, blanked


def main(library: str, *architectures: str) -> None:
    with Path(library).open("r+b") as file, mmap.mmap(file.fileno(), 0) as image:
        kept, blanked = strip(image, [int(a) for a in architectures])
    if not kept:
        sys.exit(f"{library} has no GPU code for {', '.join(architectures)}")
    print(
        f"{library}: kept {kept / 1e6:.0f} MB of GPU code for {', '.join(architectures)}, blanked {blanked / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
