"""How a server program was built, from its files alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_moegpu.host.enginefacts import read_built
from pytest_moegpu.host.pythonlibs import packages
from tests.fakes.cuda_program import COMPILER, cubin, elf, fatbin, ptx, site_packages

NOTE = COMPILER.format("13.0", 88).encode() + b"\0"


def console_script(path: Path, first: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first}\nimport sys\n")
    path.chmod(0o755)
    return path


def test_kernels_in_a_library_beside_the_program_are_its_own(tmp_path: Path) -> None:
    program = elf(tmp_path / "bin/llama-server", needed=("libggml.so",))
    elf(tmp_path / "bin/libggml-cuda.so", fatbin(cubin(86, code=NOTE), ptx(90)), ("libcudart.so.13", "libcublas.so.13"))
    (tmp_path / "bin/libcudart.so.13.0.96").write_bytes(b"")
    (tmp_path / "bin/libcudart.so.13").symlink_to("libcudart.so.13.0.96")
    built = read_built("llamacpp", (str(program),), {})
    assert built.architectures == ("8.6", "9.0+ptx")
    assert (built.toolkits, built.cuda_runtime) == (("13.0.88",), "13.0.96")
    # Not found: only what the name that is asked for says.
    assert built.libraries == {"cublas": "13"}


def test_a_runtime_that_is_linked_in_is_that_of_the_compiler(tmp_path: Path) -> None:
    program = elf(tmp_path / "llama-server", fatbin(cubin(86, code=NOTE)))
    built = read_built("llamacpp", (str(program),), {})
    assert (built.cuda_runtime, built.architectures) == ("13.0", ("8.6",))


def test_a_library_of_which_only_the_first_number_is_told_is_no_more_than_that(tmp_path: Path) -> None:
    program = elf(tmp_path / "llama-server", fatbin(cubin(86)), ("libcudart.so.13",))
    assert read_built("llamacpp", (str(program),), {}).cuda_runtime == "13"


def test_ld_library_path_goes_before_the_programs_own_folders(tmp_path: Path) -> None:
    program = elf(tmp_path / "bin/llama-server", fatbin(cubin(86)), ("libcudart.so.13",), "$ORIGIN/../cuda")
    for folder, version in (("cuda", "13.0.96"), ("given", "13.2.51")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"libcudart.so.{version}").write_bytes(b"")
        (tmp_path / folder / "libcudart.so.13").symlink_to(f"libcudart.so.{version}")
    assert read_built("llamacpp", (str(program),), {}).cuda_runtime == "13.0.96"
    given = {"LD_LIBRARY_PATH": str(tmp_path / "given")}
    assert read_built("llamacpp", (str(program),), given).cuda_runtime == "13.2.51"


def test_several_builds_of_which_the_driver_decides_are_not_guessed_at(tmp_path: Path) -> None:
    program = elf(tmp_path / "bin/ollama")
    for version, capability in (("cuda_v12", 86), ("cuda_v13", 120)):
        elf(tmp_path / "lib/ollama" / version / "libggml-cuda.so", fatbin(cubin(capability)))
    built = read_built("ollama", (str(program),), {})
    assert built.architectures == ()
    assert "several CUDA builds (cuda_v12, cuda_v13)" in built.unknown[0]


def test_a_build_that_cannot_be_read_leaves_the_architectures_unknown(tmp_path: Path) -> None:
    program = elf(tmp_path / "llama-server", fatbin(cubin(86)))
    elf(tmp_path / "libggml-cuda.so", b"\x01garbage" * 4)
    built = read_built("llamacpp", (str(program),), {})
    assert built.architectures is None
    assert built.unknown == ("which GPUs libggml-cuda.so has kernels for: its GPU code is of an unknown form",)


def test_a_python_engine_is_read_by_its_packages(tmp_path: Path) -> None:
    site = site_packages(
        tmp_path,
        vllm="0.22.1",
        torch="2.11.0+cu130",
        nvidia_cudnn_cu13="9.15.1.9",
        nvidia_cuda_runtime="13.0.96",
        flashinfer_python="0.6.12",
        triton="3.6.0",
        nvidia_nccl_cu13="2.28.9",
    )
    elf(site / "vllm/_C.abi3.so", fatbin(cubin(90, code=NOTE)))
    elf(site / "torch/lib/libtorch_cuda.so", fatbin(cubin(75)))
    interpreter = console_script(tmp_path / "bin/python", "#!/bin/false")
    script = console_script(tmp_path / "bin/vllm", f"#!{interpreter}")
    for program in ((str(script), "serve"), (str(interpreter), "-m", "vllm.entrypoints.cli.main")):
        built = read_built("vllm", program, {})
        assert (built.package, built.cuda_runtime, built.toolkits) == ("0.22.1", "13.0.96", ("13.0.88",))
        # The engine's own kernels, not torch's.
        assert built.architectures == ("9.0",)
        assert dict(built.libraries) == {
            "torch": "2.11.0+cu130",
            "cudnn": "9.15.1.9",
            "flashinfer": "0.6.12",
            "triton": "3.6.0",
            "nccl": "2.28.9",
        }


def test_the_cuda_of_torch_is_the_runtime_where_no_package_of_it_is_there(tmp_path: Path) -> None:
    site = site_packages(tmp_path, sglang="0.5.15", torch="2.11.0")
    (site / "torch").mkdir()
    (site / "torch/version.py").write_text("__version__ = '2.11.0'\ncuda: Optional[str] = '12.8'\nhip = None\n")
    program = console_script(tmp_path / "bin/python3", "#!/bin/false")
    built = read_built("sglang", (str(program), "-m", "sglang.launch_server"), {})
    assert (built.package, built.cuda_runtime, built.architectures) == ("0.5.15", "12.8", None)


def test_packages_of_another_folder_count_by_pth_file_and_pythonpath(tmp_path: Path) -> None:
    site = site_packages(tmp_path / "own", sglang="0.5.15")
    added = site_packages(tmp_path / "added", torch="2.11.0")
    given = tmp_path / "given"
    (given / "triton-3.6.0.dist-info").mkdir(parents=True)
    (site / "more.pth").write_text(f"import this\n# {tmp_path}\n{added}\n")
    program = console_script(tmp_path / "own/bin/sglang-server", "#!/bin/sh")
    built = read_built("sglang", (str(program),), {"PYTHONPATH": str(given)})
    assert built.package == "0.5.15"
    assert dict(built.libraries) == {"torch": "2.11.0", "triton": "3.6.0"}


def test_the_embedded_server_is_read_by_its_package() -> None:
    built = read_built("llamacpp", (sys.executable, "-m", "pytest_moegpu.host.embedded_server"), {})
    assert built.package is not None
    assert built.package[0].isdigit()
    assert built.architectures == ()


def test_names_of_packages_are_normalised_and_the_first_folder_wins(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder, name in ((first, "Mlx_LM-0.32.2"), (second, "mlx_lm-0.1"), (second, "x.y-1.0rc1"), (second, "broken")):
        (folder / f"{name}.dist-info").mkdir(parents=True)
    assert packages((first, second)) == {"mlx-lm": "0.32.2", "x-y": "1.0rc1"}


@pytest.mark.parametrize("content", [b"", b"MZ\x90", b"\x7fELF\x02\x01"])
def test_a_program_of_another_form_says_nothing_and_breaks_nothing(tmp_path: Path, content: bytes) -> None:
    program = tmp_path / "server"
    program.write_bytes(content)
    assert read_built("llamacpp", (str(program),), {}).architectures is None
