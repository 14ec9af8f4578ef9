"""What the llama.cpp recipe reads out of the server's log, and what it must not read into it."""

from __future__ import annotations

import pytest

from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.core.units import MIB

RECIPE = LlamaCpp()
CUDA_LOG = """\
ggml_cuda_init: found 1 CUDA devices (Total VRAM: 143771 MiB):
  Device 0: NVIDIA H200, compute capability 9.0, VMM: yes, VRAM: 143771 MiB
0.00.231.445 I srv    load_model: loading model '/models/smol.gguf'
0.00.412.900 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)
0.00.512.001 I load_tensors: offloading output layer to GPU
0.00.512.050 I load_tensors: offloading 29 repeating layers to GPU
0.00.512.100 I load_tensors: offloaded 31/31 layers to GPU
0.00.512.180 I load_tensors:   CPU_Mapped model buffer size =    28.69 MiB
0.00.512.220 I load_tensors:        CUDA0 model buffer size =    92.10 MiB
0.00.600.002 I llama_context: constructing llama_context
0.00.601.100 I llama_context:  CUDA_Host  output buffer size =     0.19 MiB
0.00.602.000 I llama_kv_cache:      CUDA0 KV buffer size =    45.00 MiB
0.00.603.000 I llama_kv_cache: size =   45.00 MiB (  2048 cells,  30 layers,  1/1 seqs), K (f16):   22.50 MiB
0.00.640.000 I sched_reserve:      CUDA0 compute buffer size =   100.00 MiB
0.00.640.050 I sched_reserve:  CUDA_Host compute buffer size =     5.13 MiB
0.00.700.000 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 2048, kv_unified = 'false'
0.00.701.000 I main: model loaded
"""


def test_a_cuda_build() -> None:
    facts = RECIPE.read_log(CUDA_LOG)
    assert (facts.offloaded_layers, facts.total_layers) == (31, 31)
    assert facts.model_bytes == {"CPU_Mapped": round(28.69 * MIB), "CUDA0": round(92.10 * MIB)}
    assert facts.kv_bytes == {"CUDA0": 45 * MIB}
    assert facts.compute_bytes == {"CUDA0": 100 * MIB, "CUDA_Host": round(5.13 * MIB)}
    assert (facts.slots, facts.context, facts.devices) == (2, 2048, ("NVIDIA H200",))
    assert (facts.oom_lines, facts.fatal_lines) == ((), ())


def test_recurrent_state_is_added_to_the_kv_cache() -> None:
    """A hybrid model such as Qwen3.6 has both on one device."""
    log = CUDA_LOG.replace(
        "0.00.603.000 I",
        "0.00.602.500 I llama_memory_recurrent:      CUDA0 RS buffer size =    62.81 MiB\n0.00.603.000 I",
    )
    assert RECIPE.read_log(log).kv_bytes == {"CUDA0": 45 * MIB + round(62.81 * MIB)}


def test_the_parts_of_a_split_file_are_added_up() -> None:
    line = "0.00.512.180 I load_tensors:   CPU_Mapped model buffer size =    28.69 MiB\n"
    assert RECIPE.read_log(CUDA_LOG.replace(line, line * 2)).model_bytes["CPU_Mapped"] == 2 * round(28.69 * MIB)


def test_the_last_try_counts() -> None:
    again = CUDA_LOG.replace("offloaded 31/31", "offloaded 20/31").replace("45.00 MiB", "30.00 MiB")
    again = again.replace("100.00 MiB", "80.00 MiB").replace("92.10", "60.00")
    facts = RECIPE.read_log(CUDA_LOG + again)
    assert (facts.offloaded_layers, facts.total_layers) == (20, 31)
    assert facts.kv_bytes == {"CUDA0": 30 * MIB}
    assert facts.model_bytes["CUDA0"] == 60 * MIB
    assert facts.compute_bytes["CUDA0"] == 80 * MIB


@pytest.mark.parametrize(
    "line",
    [
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 20000.00 MiB on device 0: "
        "cudaMalloc failed: out of memory",
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 20971520000: unable to allocate CUDA0 buffer",
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
        "graph_reserve: failed to allocate compute buffers",
        "CUDA error: out of memory",
    ],
)
def test_out_of_memory_is_found_without_its_time_stamp(line: str) -> None:
    assert RECIPE.read_log(f"{CUDA_LOG}0.01.000.001 E {line}\n").oom_lines == (line,)


@pytest.mark.parametrize(
    "line",
    [
        "CUDA error: an illegal memory access was encountered",
        "ggml_cuda_compute_forward: CUDA error: no kernel image is available for execution on the device",
        "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version",
        "llama-server: error while loading shared libraries: libcudart.so.13: cannot open shared object file",
        "llama_model_load_from_file_impl: failed to load model",
        "srv          init: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080",
        "srv          init: exiting due to model loading error",
        "/src/ggml/src/ggml.c:1234: GGML_ASSERT(n > 0) failed",
        "error: invalid argument: --wrong",
        "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by llama-server)",
    ],
)
def test_fatal_lines(line: str) -> None:
    assert RECIPE.read_log(f"{CUDA_LOG}{line}\n").fatal_lines == (line,)


@pytest.mark.parametrize(
    "line",
    [
        "0.05.000.000 I slot update_slots: id 0 | prompt: 'Explain the error: segmentation fault'",
        "0.05.000.000 I srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 400 error",
        "0.00.594.705 I print_info: f_norm_rms_eps        = 1.0e-05, error bound",
        "0.05.000.000 W srv: retry after an error of the client",
        "What does an error mean, and why do programs fail to load?",
        "0.00.618.882 I llama_context: n_ctx_seq (2048) < n_ctx_train (8192) -- the full capacity is not used",
    ],
)
def test_the_word_error_alone_accuses_nobody(line: str) -> None:
    facts = RECIPE.read_log(f"{CUDA_LOG}{line}\n")
    assert (facts.oom_lines, facts.fatal_lines) == ((), ())


def test_the_first_cause_is_kept_of_a_long_crash() -> None:
    crash = "".join(f"CUDA error: number {i}\n" * 3 for i in range(40))
    found = RECIPE.read_log(crash).fatal_lines
    assert found == tuple(f"CUDA error: number {i}" for i in range(10))


def test_kv_tokens_are_those_of_all_streams_in_the_largest_cache() -> None:
    log = (
        "llama_kv_cache: size =   90.00 MiB (  2048 cells,  30 layers,  2/2 seqs), K (q8_0):   45.00 MiB, V (q8_0)\n"
        "llama_kv_cache: size =    9.00 MiB (   512 cells,   5 layers,  2/2 seqs), K (q8_0):    4.50 MiB, V (q8_0)\n"
    )
    found = LlamaCpp().read_log(log)
    assert (found.kv_tokens, found.kv_type) == (4096, "q8_0")
