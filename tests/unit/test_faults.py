"""Faults named by a server's own log: what engines really print, and what only looks like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_moegpu.core.faults import KNOWN, OUT_OF_MEMORY, find, named

LINES = {
    "uncorrectable-ecc": ["torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"],
    "gpu-lost": [
        "Unable to determine the device handle for GPU0000:01:00.0: GPU is lost.  Reboot the system to recover it",
        "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
    ],
    "nvlink-error": ["CUDA error: uncorrectable NVLink error detected during the execution"],
    "no-kernel-image": [
        "CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
        "mmv.cu:51: ERROR: CUDA kernel mul_mat_vec has no device code compatible with CUDA arch 520. "
        "ggml-cuda.cu was compiled for: 520",
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
    ],
    "driver-too-old": [
        "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).",
        "CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        "Error 804: forward compatibility was attempted on non supported HW",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.2, please update your driver",
    ],
    "driver-mismatch": [
        "Failed to initialize NVML: Driver/library version mismatch",
        "Error 803: system has unsupported display driver / cuda driver combination",
    ],
    "missing-library": [
        "./llama-server: error while loading shared libraries: libcudart.so.13: cannot open shared object file: "
        "No such file or directory",
        "ImportError: libcublas.so.12: cannot open shared object file: No such file or directory",
    ],
    "missing-symbol": [
        "./llama-server: symbol lookup error: ./libggml-cuda.so: undefined symbol: cublasGemmEx",
        "./llama-server: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by ./libggml.so)",
        "ImportError: /x/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
    ],
    "device-busy": ["CUDA error: CUDA-capable device(s) is/are busy or unavailable"],
    "no-device": [
        "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Failed to infer device type, please set the environment variable",
        "CUDA error: invalid device ordinal",
    ],
    "fabric-not-ready": ["Error 802: system not yet initialized"],
    OUT_OF_MEMORY: [
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 900.00 MiB: cudaMalloc failed: out of memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. If reserved but unallocated memory is "
        "large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        "Could not load the model: CUDA out of memory",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "ValueError: Free memory on device (3.2/23.6 GiB) on startup is less than desired GPU memory utilization (0.9)",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "ggml_vulkan: Device memory allocation failed: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "The server ran out of memory",
    ],
    "host-out-of-memory": [
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "OSError: [Errno 12] Cannot allocate memory",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory",
    ],
    "illegal-memory-access": [
        "CUDA error: an illegal memory access was encountered",
        "RuntimeError: Triton Error [CUDA]: misaligned address",
        "cuLaunchKernel failed: <CUresult.CUDA_ERROR_ILLEGAL_ADDRESS: 700>",
    ],
    "kernel-crash": ["CUDA error: unspecified launch failure", "CUDA error: device-side assert triggered"],
    "kernel-timeout": ["CUDA error: the launch timed out and was terminated"],
    "port-taken": [
        "start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080",
        "OSError: [Errno 98] Address already in use",
    ],
}
CASES = [(name, line) for name, lines in LINES.items() for line in lines]


def test_every_known_fault_has_lines_here_and_words_and_advice_for_a_person() -> None:
    assert [fault.name for fault in KNOWN] == list(LINES)
    assert all(fault.words and fault.advice and not fault.line for fault in KNOWN)
    assert all(phrase == phrase.lower() and "\n" not in phrase for fault in KNOWN for phrase in fault.phrases)


@pytest.mark.parametrize(("name", "line"), CASES)
def test_the_line_names_the_fault(name: str, line: str) -> None:
    found = find(["loading model", line, "exiting due to model loading error"])
    assert found is not None
    assert found.name == name
    assert found.line == line


@pytest.mark.parametrize(("name", "line"), CASES)
def test_no_line_names_two_faults_of_which_the_wrong_one_wins(name: str, line: str) -> None:
    fault = named(name)
    assert fault is not None
    above = KNOWN[: KNOWN.index(fault)]
    assert not [other.name for other in above if any(phrase in line.lower() for phrase in other.phrases)]


@pytest.mark.parametrize(
    "line",
    [
        "srv init: lower --ctx-size to avoid running out of memory",
        "If you run out of memory, try a smaller batch",
        "this may run out of memory on small cards",
        "memory use: 12 of 24 GiB, out of which memory for the cache is 3",
        "CUDA graphs captured",
        "driver version 580.159, CUDA runtime 13.0",
        "slot update_slots: id 0 | task 1 | prompt processing progress",
    ],
)
def test_advice_and_ordinary_lines_name_nothing(line: str) -> None:
    assert find([line]) is None


def test_the_first_cause_counts_and_not_what_followed_from_it() -> None:
    log = ["CUDA error: uncorrectable ECC error encountered", "CUDA error: an illegal memory access was encountered"]
    found = find(log)
    assert found is not None
    assert (found.name, found.line) == ("uncorrectable-ecc", log[0])
    again = find(log[::-1])
    assert again is not None
    assert again.name == "illegal-memory-access"


@pytest.mark.parametrize(
    "warning",
    [
        "WARNING 11-30 20:00:00 [import_utils.py:7] Failed to import: libfoo.so: cannot open shared object file",
        "0.01.000.001 W load: libfoo.so: cannot open shared object file",
    ],
)
def test_a_warning_counts_only_when_nothing_else_names_a_fault(warning: str) -> None:
    death = "0.09.000.001 E CUDA error: out of memory"
    found = find([warning, death])
    assert found is not None
    assert (found.name, found.line) == (OUT_OF_MEMORY, "CUDA error: out of memory")
    alone = find([warning])
    assert alone is not None
    assert alone.name == "missing-library"


def test_a_line_is_shown_without_control_characters_and_cut() -> None:
    found = find(["\x1b[31mCUDA error: out of memory\x07" + "x" * 1000])
    assert found is not None
    assert found.line.startswith("[31mCUDA error: out of memory")
    assert len(found.line) == 300
    assert found.line.isprintable()


def test_what_stands_far_behind_in_one_line_is_noise() -> None:
    assert find(["x" * 2000 + "out of memory"]) is None


def test_an_empty_log_and_an_unknown_name_give_nothing() -> None:
    assert find([]) is None
    assert named("") is None
    assert named("no-kernel-image") is KNOWN[3]


def test_the_page_for_people_has_every_fault_with_its_words() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/server-faults.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [(row[0].strip("| `"), row[1], row[2].removesuffix(" |").lower()) for row in rows] == [
        (fault.name, fault.words, fault.advice.lower()) for fault in KNOWN
    ]
