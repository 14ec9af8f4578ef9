"""What the files of a program say of its GPU code."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pytest_moegpu.host.elf import ElfFile, NotElfError
from pytest_moegpu.host.fatbinary import read_kernels
from tests.fakes.cuda_program import COMPILER, cubin, elf, fatbin, ptx

NOTE = COMPILER.format("13.0", 88).encode() + b"\0"


def test_machine_code_and_ptx_of_all_files_are_listed_once_in_order(tmp_path: Path) -> None:
    code = fatbin(cubin(120), cubin(86, code=NOTE), ptx(120)) + fatbin(cubin(86), cubin(80, 0x8011))
    found = read_kernels(elf(tmp_path / "lib.so", code))
    assert found.architectures == ("8.0", "8.6", "12.0", "12.0+ptx")
    assert (found.toolkits, found.unknown) == (("13.0.88",), "")


def test_code_for_one_capability_or_one_family_is_not_taken_for_portable(tmp_path: Path) -> None:
    # The flags are those of nvcc 13.0 for sm_90a, sm_120a, sm_100f and compute_120f.
    code = fatbin(cubin(90, 0x100011), cubin(120, 0x1100011), cubin(100, 0x1200011), ptx(120, 0x208011))
    assert read_kernels(elf(tmp_path / "lib.so", code)).architectures == ("9.0a", "10.0f", "12.0a", "12.0f")


def test_a_program_without_gpu_code_has_none(tmp_path: Path) -> None:
    found = read_kernels(elf(tmp_path / "llama-server"))
    assert (found.architectures, found.toolkits) == ((), ())


@pytest.mark.parametrize(
    ("text", "release"),
    [
        (b"Cuda compilation tools, release 13.2, V13.2.51\0", "13.2.0"),
        (b"Cuda compilation tools, release 13.2, V13.2.78\0", "13.2.1"),
        (b"Cuda compilation tools, release 13.2, V13.2.86\0", "13.2.2"),
        # As a compressor leaves it, which has the second 13.2 from the first.
        (b"Cuda compilation tools, release 13.2, V.78\0", "13.2.1"),
        (b"Cuda compilation tools, release 12.9, V12.9.86\0", "12.9.86"),
    ],
)
def test_the_compiler_is_told_by_its_release(tmp_path: Path, text: bytes, release: str) -> None:
    assert read_kernels(elf(tmp_path / "lib.so", fatbin(cubin(86, code=text)))).toolkits == (release,)


def test_two_compilers_are_both_told(tmp_path: Path) -> None:
    code = fatbin(cubin(86, code=NOTE)) + fatbin(cubin(86, code=COMPILER.format("12.9", 86).encode() + b"\0"))
    assert read_kernels(elf(tmp_path / "lib.so", code)).toolkits == ("12.9.86", "13.0.88")


def test_an_unknown_form_gives_no_list_rather_than_half_of_one(tmp_path: Path) -> None:
    found = read_kernels(elf(tmp_path / "lib.so", fatbin(cubin(86)) + b"\x01garbage" * 4))
    assert (found.architectures, found.unknown) == (None, "its GPU code is of an unknown form")


def test_what_takes_too_long_gives_no_list(tmp_path: Path) -> None:
    found = read_kernels(elf(tmp_path / "lib.so", fatbin(*[cubin(86)] * 600)), most_seconds=0.0)
    assert (found.architectures, found.unknown) == (None, "its GPU code takes too long to read")


def test_needed_libraries_and_search_paths(tmp_path: Path) -> None:
    file = elf(tmp_path / "lib.so", needed=("libcudart.so.13", "libc.so.6"), runpath="$ORIGIN/../lib:/opt/x")
    with ElfFile(file) as read:
        assert read.needed() == ("libcudart.so.13", "libc.so.6")
        assert read.search_paths(tmp_path) == (tmp_path / "../lib", Path("/opt/x"))


@pytest.mark.parametrize(
    "content", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(60), b"\x7fELF\x02\x01" + bytes(9)]
)
def test_what_is_no_elf_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x"
    file.write_bytes(content)
    with pytest.raises(NotElfError):
        ElfFile(file)


def test_damaged_files_end_in_one_kind_of_error_or_an_answer(tmp_path: Path) -> None:
    sound = elf(
        tmp_path / "lib.so", fatbin(cubin(86, code=NOTE), ptx(90)), ("libcudart.so.13",), "$ORIGIN"
    ).read_bytes()
    generator, errors = random.Random(7), 0
    for number in range(2000):
        damaged = bytearray(sound)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        file = tmp_path / "damaged"
        file.write_bytes(damaged[: generator.randint(0, len(damaged))] if number % 4 == 0 else damaged)
        try:
            read_kernels(file)
            with ElfFile(file) as read:
                read.needed()
                read.search_paths(tmp_path)
        except NotElfError:
            errors += 1
    assert errors > 300
