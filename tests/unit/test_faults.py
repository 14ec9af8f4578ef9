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
        "ggml_cuda_init: failed to initialize ROCm: no ROCm-capable device is detected",
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
        "RuntimeError: [METAL] Command buffer execution failed: Insufficient Memory "
        "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory).",
        "2026-11-30 10:00:00,101 - ERROR - mlx_lm.server generation thread died: [metal::malloc] Attempting to "
        "allocate 21474836480 bytes which is greater than the maximum allowed buffer size of 9534832640 bytes.",
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
        "llama_model_load: error loading model: unable to allocate CPU buffer",
        "graph_reserve: failed to allocate compute buffers",
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
    ],
    "host-out-of-memory": [
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "OSError: [Errno 12] Cannot allocate memory",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory",
        "ValueError: Available memory on node 0 (21.99/23.54 GiB) on startup is less than desired CPU memory "
        "utilization (0.999, 23.52 GiB).",
        "Error: model requires more system memory (9.9 GiB) than is available (7.6 GiB)",
    ],
    "illegal-memory-access": [
        "CUDA error: an illegal memory access was encountered",
        "RuntimeError: Triton Error [CUDA]: misaligned address",
        "cuLaunchKernel failed: <CUresult.CUDA_ERROR_ILLEGAL_ADDRESS: 700>",
        "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
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
        "In case you run out of memory, lower --max-num-seqs",
        "This can help when running out of memory on small cards.",
        "If CUDA out of memory errors come, set expandable_segments",
        "INFO 11-30 10:00:00 [logger.py:39] Received request chat-1: prompt: 'CUDA out of memory, why?', params: …",
        """0.09.000.001 E srv log: request: {"messages":[{"role":"user","content":"CUDA error: out of memory"}]}""",
        "[2026-11-30 10:00:00] Receive: obj=GenerateReqInput(rid='1', text='CUDA out of memory'",
        "Prompt: what does CUDA out of memory mean?",
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


PINNED = "ggml_cuda_host_malloc: failed to allocate 1024.00 MiB of pinned memory: out of memory"
CUDA_OOM = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 900.00 MiB: cudaMalloc failed: out of memory"
RETRY = "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism"
NO_DEVICE = "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected"
NO_LIBRARY = "ggml_backend_load: failed to load libggml-cuda.so: libcudart.so.12: cannot open shared object file"
UNKNOWN_MODEL = "llama_model_load: error loading model: unknown model architecture: 'foo'"
TORCH_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
C10D = (
    "[W socket.cpp:764] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)"
)
WARNINGS = [
    "WARNING 11-30 20:00:00 [import_utils.py:7] Failed to import: libfoo.so: cannot open shared object file",
    "(EngineCore pid=7) WARNING 11-30 20:00:00 [x.py:7] libfoo.so: cannot open shared object file",
    "[2026-11-30 10:00:00 TP0] WARNING x.py: libfoo.so: cannot open shared object file",
    "[2026-11-30 10:00:00] Ignore import error when loading x: libfoo.so: cannot open shared object file",
    "2026-11-30 10:00:00,101 - WARNING - libfoo.so: cannot open shared object file",
    'time=2026-11-30T10:00:00 level=WARN source=a.go msg="libfoo.so: cannot open shared object file"',
    "/x/torch/cuda.py:9: UserWarning: libfoo.so: cannot open shared object file",
    "0.01.000.001 W load: libfoo.so: cannot open shared object file",
    "W1130 10:00:00.000 1 load.cpp:7] libfoo.so: cannot open shared object file",
    "[rank0]:[W1130 10:00:00.000 load.cpp:7] libfoo.so: cannot open shared object file",
]


def kind(*log: str) -> str | None:
    found = find(log)
    return None if found is None else found.name


@pytest.mark.parametrize("warning", WARNINGS)
def test_a_warning_counts_only_when_nothing_else_names_a_fault(warning: str) -> None:
    death = "0.09.000.001 E CUDA error: out of memory"
    found = find([warning, death])
    assert found is not None
    assert (found.name, found.line) == (OUT_OF_MEMORY, "CUDA error: out of memory")
    assert kind(death, warning) == OUT_OF_MEMORY
    assert kind(warning, "OSError: [Errno 98] Address already in use") == "port-taken"
    assert kind(warning) == "missing-library"
    assert kind(warning, "exiting due to model loading error") == "missing-library"
    assert kind(warning, "ValueError: bad value") is None


@pytest.mark.parametrize("warning", WARNINGS)
def test_a_warning_never_says_that_memory_ran_out(warning: str) -> None:
    for words in ("CUDA out of memory", "cannot allocate memory"):
        said = warning.replace("libfoo.so: cannot open shared object file", words)
        assert words in said
        assert kind(said) is None


@pytest.mark.parametrize(
    "line",
    [
        "ERROR 11-30 10:00:00 [core.py:7] RuntimeError: CUDA error: out of memory; for debugging see the info above",
        "[2026-11-30 10:00:00 TP0] Scheduler hit an exception: device info: CUDA out of memory",
        "ERROR:    CUDA out of memory, see the warning above",
        "May 12 10:00:00 host: cudaMalloc failed: out of memory",
        "E1130 10:00:00.000 1 load.cpp:7] CUDA out of memory",
        "[E socket.cpp:7] CUDA out of memory",
    ],
)
def test_a_line_is_no_warning_because_it_speaks_of_information_or_debugging(line: str) -> None:
    assert kind(line) == OUT_OF_MEMORY


@pytest.mark.parametrize("level", ["", "0.01.000.001 D ", "0.01.000.001 I ", "0.01.000.001 W "])
def test_pinned_memory_that_could_not_be_had_is_survived(level: str) -> None:
    assert kind(level + PINNED) is None
    assert kind(level + PINNED, UNKNOWN_MODEL) is None
    assert kind(level + PINNED, CUDA_OOM) == OUT_OF_MEMORY


def test_what_has_a_new_try_behind_it_was_survived() -> None:
    tried = (CUDA_OOM, "graph_reserve: failed to allocate compute buffers", RETRY)
    assert kind(*tried) is None
    assert kind(*tried, "the server ended") is None
    assert kind(*tried, UNKNOWN_MODEL) is None
    assert kind(*tried, CUDA_OOM) == OUT_OF_MEMORY
    assert kind(*tried, "CUDA error: an illegal memory access was encountered") == "illegal-memory-access"
    assert kind("CUDA error: uncorrectable ECC error encountered", *tried) == "uncorrectable-ecc"
    assert kind(CUDA_OOM, "Received request 1: prompt: 'retrying'") == OUT_OF_MEMORY
    assert kind("OSError: [Errno 98] Address already in use", "retrying on port 8001", "Killed") is None


@pytest.mark.parametrize("line", [*LINES["missing-library"], *LINES["missing-symbol"], *LINES["no-device"], C10D])
@pytest.mark.parametrize("fatal", [CUDA_OOM, TORCH_OOM, "CUDA error: an illegal memory access was encountered"])
def test_what_engines_survive_ranks_below_memory_and_cuda_wherever_it_stands(line: str, fatal: str) -> None:
    assert kind(line, fatal) == kind(fatal, line) == kind(fatal) is not None


@pytest.mark.parametrize("line", [NO_DEVICE, NO_LIBRARY, C10D, *LINES["port-taken"]])
def test_another_cause_behind_what_engines_survive_is_the_cause(line: str) -> None:
    assert kind(line) is not None
    for cause in (UNKNOWN_MODEL, "RuntimeError: NCCL error: internal error", "NotImplementedError"):
        assert kind(line, cause) is None
    assert kind(UNKNOWN_MODEL, line) is not None
    assert kind(line, "llama_model_load: failed to load model", "exiting due to model loading error") == kind(line)


def test_a_cuda_that_llama_cpp_goes_on_without_is_not_the_cause_of_a_later_death() -> None:
    old = "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version"
    assert kind(old) == "driver-too-old"
    assert kind(old, UNKNOWN_MODEL) is None
    assert kind(old, "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080") == "port-taken"


def test_of_what_engines_survive_the_last_is_nearest_to_the_death() -> None:
    found = find([NO_DEVICE, LINES["port-taken"][0]])
    assert found is not None
    assert (found.name, found.line) == ("port-taken", LINES["port-taken"][0])


@pytest.mark.parametrize(
    "consequence",
    [
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
        "RuntimeError: Failed to import x because of the following error (look up to see its traceback):",
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1)",
        "ERROR:    Application startup failed. Exiting.",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "Subprocess scheduler_0 crashed with exit code -15",
        "FutureWarning: error: of another day",
    ],
)
def test_what_follows_from_a_fault_is_not_another_cause(consequence: str) -> None:
    line = "ImportError: libcublas.so.12: cannot open shared object file: No such file or directory"
    assert kind(line, consequence) == "missing-library"


@pytest.mark.parametrize(
    "line",
    [
        "ftllm: error: unrecognized arguments: --cache-type-k q8_0 --flash-attn on --ctx-size 6144",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='x', port=443): Failed to resolve 'x'",
        "FastLLM Error: set_model_kv_cache_dtype error: kv_cache_dtype should be auto, float32, float16, bfloat16, "
        "fp8_e4m3 or fp4_e2m1.",
        "iqk_quantize_row_q8_K error with type q4_1",
        "FastLLM Error: Linear error: unsupported data types ...",
        "FastLLM Error: CatDirect's inputs should have the same float or int8 type.",
        "ValueError: Context/RoPE: context extension is not implemented for this model layout",
        "mlx_lm.server generation thread died: [GatherMM::eval] Currently only supports float32",
        "vllm: error: unrecognized arguments: --bogus-flag 1",
        "argument --kv-cache-dtype: invalid choice: 'int8' (choose from auto, bfloat16)",
        "huggingface_hub.errors.HFValidationError: Repo id must use alphanumeric chars: './nope'.",
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder",
        "Value error, User-specified max_model_len (999999) is greater than the derived max_model_len",
        "ValueError: Triton dequant kernels require CUDA tensors",
        "PackageNotFoundError: No package metadata was found for vllm",
        "RuntimeError: operator torchvision::nms does not exist",
        "OSError: model does not appear to have a file named model/x.gguf",
        "ValueError: CPU FP8 KV cache requires Intel AMX support.",
        "ValueError: Warning: User-specified context_length (999999) is greater than the derived context_length (8192)",
        'error while handling argument "--device": invalid device',
        "GGML_ASSERT(mmq_x_best != 0) failed",
        "terminate called after throwing an instance of 'std::runtime_error'",
        UNKNOWN_MODEL,
    ],
)
def test_other_fatal_lines_of_the_engines_name_no_fault_and_are_a_cause_of_their_own(line: str) -> None:
    assert kind("loading model", line, "exiting due to model loading error") is None
    assert kind(NO_LIBRARY, line) is None
    assert kind(CUDA_OOM, line) == OUT_OF_MEMORY


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
