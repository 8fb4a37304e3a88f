"""Read what a built libnccl.so knows from the file alone: no code of it runs, and no GPU is needed.

For x86-64 builds with symbols, as all of NVIDIA's wheels are. Two sources: strings that the machine code takes the
address of (what is only part of a message does not count), and debug information (DWARF 4) for the layout of types.
"""

from __future__ import annotations

import bisect
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from elftools.dwarf.compileunit import CompileUnit
from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

STRUCTS = r"nccl(?:Tuner|TunerConstants|NvlDomainInfo)_v\d+_t"
ENUMS = ("ncclFunc_t", "ncclDebugLogLevel", "ncclDebugLogSubSys", "ncclResult_t")
TABLES = {"functions": "ncclFuncStr", "algorithms": "ncclAlgoStr", "protocols": "ncclProtoStr"}
"""Arrays of names in NCCL's src/include/comm.h; the position is the number that a tuner is given."""

MESSAGES = (
    "%s: opCount %lx sendbuff %p recvbuff %p count %zi datatype %d op %d root %d comm %p [nranks=%d] stream %p",
    "%s: opCount %lx sendbuff %p recvbuff %p count %zu datatype %d op %d root %d comm %p [nranks=%d] stream %p",
    "%ld Bytes -> Algo %d proto %d time %f",
    "%s: %ld Bytes -> Algo %d proto %d time %f",
    "%s: %ld Bytes -> Algo %s proto %s channel{Lo..Hi}={%d..%d}",
    "%s set by environment to %lld.",
    "%d coll channels, %d collnet channels, %d nvls channels, %d p2p channels, %d p2p channels per peer",
    "All entries except the first must have a prefix",
    "rror : no algorithm/protocol available",
    "No algorithm/protocol available for function %s with datatype %s.%s%s",
    "No algorithm/protocol nor symKernelId available for function %s with datatype %s.%s%s%s",
)
"""Parts of messages that ncclt reads in logs, or that tell what a release can do."""

# lea reg, [rip + x] with 64-bit registers: how position-independent code takes the address of a string.
_ADDRESS = re.compile(rb"(?=[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](.{4}))", re.DOTALL)
_VARIABLE = re.compile(rb"(NCCL_[A-Z0-9_]+)\0")
_ACCESSOR = re.compile(r"_Z\d+ncclParam[A-Za-z0-9]+v")
_CALL_OR_JUMP = re.compile(rb"(?=[\xe8\xe9](.{4}))", re.DOTALL)
_STORED_NUMBER = re.compile(rb"\xc7(?:[\x00-\x03\x06\x07]|\x04\x24)(.{4})", re.DOTALL)
_NAME_FIRST_BYTES = (1, 2)
"""Bytes of a DIE before its name, which compilers write first: its abbreviation code, a LEB128 number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Facts of one libnccl.so.

    Attributes:
        version: what ncclGetVersion stores, such as 23203.
        variables: name -> whether code reads it; False = NCCL_PARAM declares it and nothing asks for its value.
        messages: of `MESSAGES`.
        plugins: symbols that its loaders look for.
        names: of functions, algorithms and protocols, by `TABLES`; the position is NCCL's number.
        structs: name -> lines `offset declaration`; the last is the size.
        enums: name -> lines `value name`.
    """

    version: int
    variables: dict[str, bool]
    messages: frozenset[str]
    plugins: frozenset[str]
    names: dict[str, tuple[str, ...]]
    structs: dict[str, tuple[str, ...]]
    enums: dict[str, tuple[str, ...]]


def read_library(file: BinaryIO) -> Library:
    """Read a library.

    Args:
        file: the shared object, open for reading in binary and seekable.

    Raises:
        ValueError: it is no NCCL of a kind that this reader knows.
    """
    elf = ELFFile(file)
    if elf["e_machine"] != "EM_X86_64" or elf.get_section_by_name(".symtab") is None:
        raise ValueError("not an x86-64 library with symbols")
    code = _Code(elf)
    structs, enums = _types(elf)
    plugins = code.referenced(re.compile(rb"(nccl(?:\w*Plugin|Profiler)_v\d+)\0"))
    return Library(
        version=code.version(),
        variables=code.variables(),
        messages=code.messages(),
        plugins=frozenset(plugins.values()),
        names={kind: code.table(symbol) for kind, symbol in TABLES.items()},
        structs=structs,
        enums=enums,
    )


class _Code:
    """Machine code, constants and symbols of a library."""

    def __init__(self, elf: ELFFile) -> None:
        self._elf = elf
        text, constants = elf.get_section_by_name(".text"), elf.get_section_by_name(".rodata")
        self._text, self._text_at = text.data(), text["sh_addr"]
        self._constants, self._constants_at = constants.data(), constants["sh_addr"]
        # Relative relocations: address of a pointer -> what it points to.
        self._pointers = {
            relocation["r_offset"]: relocation["r_addend"]
            for section in elf.iter_sections()
            if isinstance(section, RelocationSection) and section.is_RELA()
            for relocation in section.iter_relocations()
            if relocation["r_info_sym"] == 0
        }
        self._users = defaultdict(list)
        for match in _ADDRESS.finditer(self._text):
            at = self._text_at + match.start()
            self._users[at + 7 + struct.unpack("<i", match[1])[0]].append(at)
        symbols = elf.get_section_by_name(".symtab").iter_symbols()
        self._symbols = [(symbol["st_value"], symbol["st_size"], symbol.name) for symbol in symbols]
        self._functions = sorted(symbol for symbol in self._symbols if self._in_text(symbol[0]))

    def _in_text(self, address: int) -> bool:
        return self._text_at <= address < self._text_at + len(self._text)

    def referenced(self, pattern: re.Pattern[bytes]) -> dict[int, str]:
        """Return the strings of a pattern that code or a table points to, by their addresses."""
        pointed = set(self._pointers.values())
        texts = {self._constants_at + match.start(): match[1] for match in pattern.finditer(self._constants)}
        return {at: text.decode() for at, text in texts.items() if at in self._users or at in pointed}

    def variables(self) -> dict[str, bool]:
        """Return the environment variables, and whether their value is asked for.

        NCCL_PARAM makes a function `ncclParamName` that loads the variable; it stays in the library if nobody calls it.
        """
        called = {
            self._text_at + match.start() + 5 + struct.unpack("<i", match[1])[0]
            for match in _CALL_OR_JUMP.finditer(self._text)
        }
        variables: dict[str, bool] = {}
        for at, name in self.referenced(_VARIABLE).items():
            users = [self._function(user) for user in self._users[at]]
            read = not users or any(start in called or not _ACCESSOR.fullmatch(symbol) for start, symbol in users)
            variables[name] = variables.get(name, False) or read
        return variables

    def messages(self) -> frozenset[str]:
        """Return the members of `MESSAGES` in the library."""
        return frozenset(text for text in MESSAGES if text.encode() in self._constants)

    def _function(self, at: int) -> tuple[int, str]:
        """Return start and name of the function that an address of code belongs to."""
        start, _, name = self._functions[bisect.bisect_right(self._functions, (at, 1 << 64, "")) - 1]
        return start, name

    def version(self) -> int:
        """Return the number that ncclGetVersion stores through its argument."""
        for start, size, name in self._functions:
            if name in ("ncclGetVersion", "pncclGetVersion") and size:
                body = self._text[start - self._text_at :][:size]
                numbers = [struct.unpack("<i", match[1])[0] for match in _STORED_NUMBER.finditer(body)]
                if version := next((number for number in numbers if 20000 <= number < 100000), 0):
                    return version
        raise ValueError("ncclGetVersion stores no number")

    def table(self, symbol: str) -> tuple[str, ...]:
        """Return the strings of an array of names."""
        for start, size, name in self._symbols:
            if name == symbol:
                return tuple(self._string(self._pointers[at]) for at in range(start, start + size, 8))
        return ()

    def _string(self, address: int) -> str:
        begin = address - self._constants_at
        return self._constants[begin : self._constants.index(b"\0", begin)].decode()


def _types(elf: ELFFile) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Return structs and enums. Only the definitions looked for are parsed: a whole library takes minutes."""
    if not elf.has_dwarf_info():
        return {}, {}
    strings = elf.get_section_by_name(".debug_str").data()
    wanted = re.compile(rf"({STRUCTS}|{'|'.join(ENUMS)})\0".encode())
    offsets = defaultdict(list)
    for match in wanted.finditer(strings):
        offsets[match[1].decode()].append(match.start())
    info = elf.get_section_by_name(".debug_info").data()
    units = sorted(elf.get_dwarf_info().iter_CUs(), key=lambda unit: unit.cu_offset)
    structs, enums = {}, {}
    for name, places in sorted(offsets.items()):
        definition = next(filter(None, map(_definition, _named(name, places, info, units))), None)
        if definition is not None and definition.tag == "DW_TAG_enumeration_type":
            enums[name] = tuple(_enumerators(definition))
        elif definition is not None:
            structs[name] = tuple(_members(definition))
    return structs, enums


def _named(name: str, places: list[int], info: bytes, units: list[CompileUnit]) -> Iterator[DIE]:
    """Yield the debugging entries of a name, by where its string is referred to."""
    starts = [unit.cu_offset for unit in units]
    for place in places:
        for match in re.finditer(re.escape(struct.pack("<I", place)), info):
            unit = units[bisect.bisect_right(starts, match.start()) - 1]
            for before in _NAME_FIRST_BYTES:
                die = _entry(unit, match.start() - before)
                if die is not None and _text(die) == name:
                    yield die


def _entry(unit: CompileUnit, offset: int) -> DIE | None:
    """Return the entry at an offset, None where there is none: bytes that look like one are common."""
    try:
        return unit.get_DIE_from_refaddr(offset)
    except Exception:  # noqa: BLE001  whatever pyelftools makes of bytes that are no entry
        return None


def _definition(die: DIE) -> DIE | None:
    """Return the struct or enum that an entry is or names, None where it is only declared."""
    while die.tag == "DW_TAG_typedef" and "DW_AT_type" in die.attributes:
        die = die.get_DIE_from_attribute("DW_AT_type")
    kinds = ("DW_TAG_structure_type", "DW_TAG_enumeration_type")
    return die if die.tag in kinds and "DW_AT_declaration" not in die.attributes else None


def _text(die: DIE) -> str:
    name = die.attributes.get("DW_AT_name")
    return name.value.decode() if name else ""


def _enumerators(die: DIE) -> Iterator[str]:
    for child in die.iter_children():
        yield f"{child.attributes['DW_AT_const_value'].value} {_text(child)}"


def _members(die: DIE) -> Iterator[str]:
    for child in die.iter_children():
        if child.tag == "DW_TAG_member":
            yield f"{child.attributes['DW_AT_data_member_location'].value} {_declared(child)}"
    yield f"{die.attributes['DW_AT_byte_size'].value} end"


def _declared(member: DIE) -> str:
    """Write a member as C does: `double baseLatencies[7][3]`; a pointer to a function as `int init(size_t, void**)`."""
    kind = _target(member)
    if kind is not None and kind.tag == "DW_TAG_array_type":
        bounds = [child.attributes["DW_AT_upper_bound"].value + 1 for child in kind.iter_children()]
        return f"{_type(_target(kind))} {_text(member)}{''.join(f'[{bound}]' for bound in bounds)}"
    function = _target(kind) if kind is not None and kind.tag == "DW_TAG_pointer_type" else None
    if function is not None and function.tag == "DW_TAG_subroutine_type":
        arguments = [_type(_target(child)) for child in function.iter_children()]
        return f"{_type(_target(function))} {_text(member)}({', '.join(arguments)})"
    return f"{_type(kind)} {_text(member)}"


def _target(die: DIE) -> DIE | None:
    return die.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in die.attributes else None


def _type(die: DIE | None) -> str:
    if die is None:
        return "void"
    if die.tag == "DW_TAG_pointer_type":
        return f"{_type(_target(die))}*"
    if die.tag == "DW_TAG_const_type":
        return f"const {_type(_target(die))}"
    return _text(die) or die.tag.removeprefix("DW_TAG_")
