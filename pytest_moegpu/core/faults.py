"""Faults that a server names in its own log: known phrases, what they mean to a person, and what to do next.

CUDA's phrases are what `cudaGetErrorString` and `cudaGetErrorName` of libcudart 13.0 return (the number is the code);
the dynamic loader's are those of glibc's ld.so. Engines print these as they are, whatever they put around them; where
one has words of its own, its name stands beside the phrase.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_moegpu.core.faultlines import has_happened, is_another_cause, is_mild, is_new_try

__all__ = ["KNOWN", "OUT_OF_MEMORY", "Fault", "find", "named"]

OUT_OF_MEMORY = "out-of-memory"
_MEMORY = frozenset({OUT_OF_MEMORY, "host-out-of-memory"})

# llama.cpp says so of a CUDA that does not work, and goes on without it.
_GOES_ON = "ggml_cuda_init: failed to initialize"

# A longer line is noise behind this; without a bound one line of a flood would be searched for every phrase.
_LINE_CHARACTERS = 2000
_SHOWN_CHARACTERS = 300
_PREFIX = re.compile(r"^\d+\.\d+\.\d+\.\d+ [A-Z] ")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A known fault. `words` say what it is, `advice` what to do next, `phrases` are lower case.

    `line` is the line of the log that names it; empty in the table. `survivable`: engines go on after such a line, so
    that it is the cause of a death only where nothing else is.
    """

    name: str
    words: str
    advice: str
    phrases: tuple[str, ...]
    line: str = ""
    survivable: bool = False


KNOWN = (
    Fault(
        name="uncorrectable-ecc",
        words="uncorrectable memory error of the GPU (ECC)",
        advice="take the GPU out of service, read `nvidia-smi -q -d ECC,ROW_REMAPPER`, reset it or reboot",
        phrases=(
            "uncorrectable ecc error encountered",  # 214
            "cudaerroreccuncorrectable",
            "cuda_error_ecc_uncorrectable",
        ),
    ),
    Fault(
        name="gpu-lost",
        words="the GPU is lost",
        advice="look for an Xid in the kernel log; reset the GPU or reboot, and check power, riser and cooling",
        phrases=(
            "gpu is lost",  # NVML_ERROR_GPU_IS_LOST
            "nvml_error_gpu_is_lost",
            "fallen off the bus",  # the driver's words for Xid 79
            "gpu requires reset",  # NVML_ERROR_RESET_REQUIRED
        ),
    ),
    Fault(
        name="nvlink-error",
        words="uncorrectable NVLink error",
        advice="read `nvidia-smi nvlink -e` and the kernel log; check bridges or fabric manager, then reset the GPUs",
        phrases=("uncorrectable nvlink error detected", "cudaerrornvlinkuncorrectable"),  # 220
    ),
    Fault(
        name="no-kernel-image",
        words="the engine was built for another GPU",
        advice="use a build of the engine whose CUDA architectures hold this GPU's compute capability",
        phrases=(
            "no kernel image is available",  # 209
            "cudaerrornokernelimagefordevice",
            "cuda_error_no_binary_for_gpu",
            "device kernel image is invalid",  # 200
            "has no device code compatible with cuda arch",  # ggml
            "is not compatible with the current pytorch installation",
        ),
    ),
    Fault(
        name="driver-too-old",
        words="the driver is too old for the engine's CUDA toolkit",
        advice="install a driver that serves this CUDA version, or an engine built with an older toolkit; "
        "GeForce cards have no forward compatibility (error 804), so remove the `cuda-compat` libraries there",
        phrases=(
            "cuda driver version is insufficient",  # 35
            "cudaerrorinsufficientdriver",
            "api call is not supported in the installed cuda driver",  # 36
            "ptx was compiled with an unsupported toolchain",  # 222
            "cudaerrorunsupportedptxversion",
            "forward compatibility was attempted on non supported",  # 804
            "cudaerrorcompatnotsupportedondevice",
            "cuda_error_compat_not_supported_on_device",
            "nvidia driver on your system is too old",  # torch
            "unsatisfied condition: cuda>=",  # nvidia-container-cli
        ),
    ),
    Fault(
        name="driver-mismatch",
        words="the loaded driver and its libraries are of different versions",
        advice="reboot, so that the driver that was installed is also the one that is loaded",
        phrases=(
            "driver/library version mismatch",  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
            "system has unsupported display driver / cuda driver combination",  # 803
            "cudaerrorsystemdrivermismatch",
        ),
    ),
    Fault(
        name="missing-library",
        words="a shared library is missing",
        advice="install the library it names, or put its folder on the loader's path (ldconfig, LD_LIBRARY_PATH)",
        phrases=("error while loading shared libraries", "cannot open shared object file", "library not loaded:"),
        survivable=True,
    ),
    Fault(
        name="missing-symbol",
        words="a shared library does not fit the engine",
        advice="the library found is of another version than the engine was built with: look which one is loaded (ldd)",
        phrases=(
            "symbol lookup error",
            "undefined symbol:",
            "' not found (required by",  # version `GLIBC_2.38' not found (required by …)
            "shared object symbol not found",  # 302
            "symbol not found in flat namespace",
        ),
        survivable=True,
    ),
    Fault(
        name="device-busy",
        words="the GPU is busy or not available",
        advice="end what uses the GPU, and look at its compute mode (`nvidia-smi -q -d COMPUTE`) and MIG settings",
        phrases=(
            "busy or unavailable",  # 46
            "cudaerrordevicesunavailable",
            "cuda_error_device_unavailable",
            "mps client failed to connect",  # 805
            "resources required to support device connections have been exhausted",  # 809
        ),
    ),
    Fault(
        name="no-device",
        words="no GPU was found",
        advice="check `nvidia-smi`, CUDA_VISIBLE_DEVICES and, in a container, that it was given the GPU",
        phrases=(
            "no cuda-capable device is detected",  # 100
            "no rocm-capable device is detected",
            "cudaerrornodevice",
            "cuda_error_no_device",
            "invalid device ordinal",  # 101
            "cuda driver is a stub library",  # 34
            "no cuda gpus are available",  # torch
            "found no nvidia driver on your system",  # torch
            "failed to infer device type",  # vLLM
        ),
        survivable=True,
    ),
    Fault(
        name="fabric-not-ready",
        words="the GPU fabric is not ready",
        advice="start nvidia-fabricmanager of the driver's own version and wait until it has configured the switches",
        phrases=("system not yet initialized", "cudaerrorsystemnotready", "cuda_error_system_not_ready"),  # 802
    ),
    Fault(
        name=OUT_OF_MEMORY,
        words="out of memory",
        advice="lower context, slots, batch or the share of memory the engine may take, or use a smaller quantisation",
        phrases=(
            "out of memory",  # 2
            "cudaerrormemoryallocation",
            "cuda_error_out_of_memory",
            "outofmemoryerror",
            "erroroutofdevicememory",  # Vulkan
            "cublas_status_alloc_failed",
            "no available memory for the cache blocks",  # vLLM
            "larger than the available kv cache memory",  # vLLM
            "is less than desired gpu memory utilization",  # vLLM
            "not enough memory. please try to increase",  # SGLang
            "no enough memory left on device",  # FastLLM
            "erroroutofmemory",  # Metal, HIP
            "greater than the maximum allowed buffer size",  # MLX
            "unable to allocate cuda",  # llama.cpp, these four
            "unable to allocate cpu",
            "failed to allocate compute",
            "failed to allocate buffer for",
        ),
    ),
    Fault(
        name="host-out-of-memory",
        words="out of host memory",
        advice="free host memory, map the model file instead of reading it, or lower what is kept on the host",
        phrases=(
            "std::bad_alloc",  # C++
            "cannot allocate memory",  # ENOMEM
            "can't allocate memory",  # torch
            "is less than desired cpu memory utilization",  # vLLM
            "requires more system memory",  # Ollama
        ),
    ),
    Fault(
        name="illegal-memory-access",
        words="illegal memory access on the GPU",
        advice="a fault of a kernel, or of the hardware: repeat it with CUDA_LAUNCH_BLOCKING=1, another engine build, "
        "and the driver of the baseline",
        phrases=(
            "illegal memory access",  # 700
            "cudaerrorillegaladdress",
            "cuda_error_illegal_address",
            "misaligned address",  # 716
            "operation not supported on global/shared address space",  # 717
            "invalid access of peer gpu memory over nvlink or a hardware error",  # 226
            "cuda_error_contained",
        ),
    ),
    Fault(
        name="kernel-crash",
        words="a kernel crashed on the GPU",
        advice="repeat it with CUDA_LAUNCH_BLOCKING=1, another engine build, and the driver of the baseline",
        phrases=(
            "unspecified launch failure",  # 719
            "cuda_error_launch_failed",
            "device-side assert triggered",  # 710
            "illegal instruction was encountered",  # 715
            "invalid program counter",  # 718
            "hardware stack error",  # 714
        ),
    ),
    Fault(
        name="kernel-timeout",
        words="a kernel was stopped because it took too long",
        advice="use a GPU without a display, or raise the time limit of the system (WSL2 and Windows: TdrDelay)",
        phrases=("launch timed out and was terminated", "cudaerrorlaunchtimeout"),  # 702
    ),
    Fault(
        name="port-taken",
        words="the port is taken",
        advice="end what listens there; the run asks for a free port each time, so somebody took it in between",
        phrases=("address already in use", "couldn't bind http server socket"),  # EADDRINUSE, llama.cpp
        survivable=True,
    ),
)
"""All known faults. When one line names two, the one further up counts: it is nearer to the hardware."""


def find(lines: Sequence[str]) -> Fault | None:
    """Return the fault that a log names as the cause of a death, with its line; None when it names none.

    The first one counts, because what follows is often its consequence. Two kinds come after all others, and not at all
    when another cause is named behind them: a fault that engines survive, of which the last is nearest to the death,
    and a line that is a warning or less. Such a line never says that memory ran out, nor does one with a new try behind
    it. Ask only about a server that has died or never got ready: from others these lines mean that it has survived.
    """
    first: tuple[Fault, str] | None = None
    survivable: tuple[Fault, str] | None = None
    mild: tuple[Fault, str] | None = None
    present = _present(lines)
    for line in lines if present else ():
        lowered = line[:_LINE_CHARACTERS].lower()
        if is_new_try(lowered):
            first = survivable = mild = None
        if first is not None:
            # Memory that ran out; only a new try can still tell that it was survived.
            continue
        fault = next((fault for fault, phrases in present if _says(lowered, phrases)), None)
        if fault is None:
            if (survivable or mild) and is_another_cause(lowered):
                survivable = mild = None
        elif is_mild(lowered):
            mild = mild or (None if fault.name in _MEMORY else (fault, line))
        elif fault.survivable or _GOES_ON in lowered:
            survivable = (fault, line)
        else:
            first = (fault, line)
            if fault.name not in _MEMORY:
                break
    found = first or survivable or mild
    return replace(found[0], line=_shown(found[1])) if found else None


def named(name: str) -> Fault | None:
    """Return the known fault of a name, such as `StartFailure.kind`; None when there is none."""
    return next((fault for fault in KNOWN if fault.name == name), None)


def _present(lines: Iterable[str]) -> list[tuple[Fault, tuple[str, ...]]]:
    """Keep only the phrases that stand somewhere: one quick look at all, instead of many at each line."""
    whole = "\n".join(line[:_LINE_CHARACTERS] for line in lines).lower()
    found = ((fault, tuple(phrase for phrase in fault.phrases if phrase in whole)) for fault in KNOWN)
    return [(fault, phrases) for fault, phrases in found if phrases]


def _says(lowered: str, phrases: tuple[str, ...]) -> bool:
    return any((at := lowered.find(phrase)) >= 0 and has_happened(lowered[:at]) for phrase in phrases)


def _shown(line: str) -> str:
    shown = "".join(c if c.isprintable() else " " for c in _PREFIX.sub("", line[:_LINE_CHARACTERS])).strip()
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[: _SHOWN_CHARACTERS - 1] + "…"
