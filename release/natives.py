"""What the native half of a package needs of the system that loads it."""

import io
import re

from places import GLIBC, Platform

# Of these, Node and Python give what begins so.
HOSTS = {"tailrope.node": "napi_", "_native.abi3.so": "Py"}
GLIBC_LIBRARIES = {"libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "librt.so.1"}
GLIBC_LIBRARIES |= {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
MUSL_LIBRARIES = {"libc.so", "libc.musl-x86_64.so.1", "libc.musl-aarch64.so.1", "libgcc_s.so.1"}
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def problems(name: str, content: bytes, platform: Platform) -> list[str]:
    """What would keep it from being loaded on the oldest system that it is published for. ELF files alone."""
    if not platform.is_linux:
        return []
    # This package is only installed where packages are checked.
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(io.BytesIO(content))
    found = []
    machine = MACHINES.get(elf["e_machine"])
    if machine != platform.arch:
        found.append(f"{name} is for {machine}")
    dynamic = elf.get_section_by_name(".dynamic")
    needed = {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}
    strange = needed - (MUSL_LIBRARIES if platform.is_musl else GLIBC_LIBRARIES)
    if strange:
        found.append(f"{name} needs {', '.join(sorted(strange))}")
    versions = elf.get_section_by_name(".gnu.version_r")
    symbols = [aux.name for _, each in versions.iter_versions() for aux in each] if versions is not None else []
    for symbol in symbols:
        glibc = re.fullmatch(r"GLIBC_([\d.]+)", symbol)
        if glibc and (platform.is_musl or numbers(glibc[1]) > numbers(GLIBC)):
            found.append(f"{name} needs {symbol}")
    if platform.is_musl and not needed & MUSL_LIBRARIES:
        found.append(f"{name} brings a C library of its own")
    host = next(start for file, start in HOSTS.items() if file in name or file.endswith(".so"))
    table = elf.get_section_by_name(".dynsym")
    undefined = {each.name for each in table.iter_symbols() if each["st_shndx"] == "SHN_UNDEF" and each.name}
    if not any(each.startswith(host) for each in undefined):
        found.append(f"{name} asks nothing of its host ({host}...)")
    return found
