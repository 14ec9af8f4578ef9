from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moegpu.core.identity import (
    STACK_FIELDS,
    VARYING_WORDS,
    Difference,
    differences,
    identity,
    not_allowed_to_vary,
    parse_varying,
    prompt_hash,
    refusal,
    stack_changes,
)
from pytest_moegpu.core.model import DeviceKind, Gpu, ModelFile, Settings, Stack, Workload
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.errors import UserError

GPU = Gpu(index=0, name="NVIDIA GeForce RTX 3090", memory_bytes=24 * GIB, power_limit_watts=350.0, mig=False, ecc=None)
MODEL = ModelFile(path="/models/a.gguf", size_bytes=1000, sha256="ab" * 32, quantisation="Q4_K_M")


def build(
    gpus: tuple[Gpu, ...] = (GPU,),
    settings: Settings | None = None,
    model: ModelFile = MODEL,
    environment: dict[str, str] | None = None,
) -> dict[str, str]:
    return identity(
        gpus=gpus,
        backend="llamacpp",
        model=model,
        settings=settings or Settings(context=8192),
        workload_hash="cd" * 32,
        memory_version="NVML v2",
        os_class="Linux",
        check_version=3,
        environment=environment,
    )


def test_fields_are_readable_and_sorted() -> None:
    got = build()
    assert list(got) == sorted(got)
    assert {k: v for k, v in got.items() if not k.startswith("settings.")} == {
        "backend": "llamacpp",
        "check.version": "3",
        "environment": "none",
        "gpu.count": "1",
        "gpu.ecc": "not known",
        "gpu.memory": "24.00 GiB",
        "gpu.mig": "off",
        "gpu.name": "NVIDIA GeForce RTX 3090",
        "gpu.power_limit": "350 W",
        "memory.version": "NVML v2",
        "model.quantisation": "Q4_K_M",
        "model.sha256": "ab" * 32,
        "os.class": "Linux",
        "workload.prompts": "cd" * 32,
    }


def test_a_variable_that_acts_on_the_engine_counts_as_a_flag() -> None:
    now = build(environment={"GGML_CUDA_P2P": "0", "GGML_CUDA_DISABLE_GRAPHS": "1"})
    assert now["environment"] == "GGML_CUDA_DISABLE_GRAPHS=1, GGML_CUDA_P2P=0"
    assert [str(d) for d in differences(build(), now)] == [f"environment none → {now['environment']}"]


def test_every_setting_counts() -> None:
    later = {
        "memory_share": 0.9,
        "cpu_expert_layers": 4,
        "host_weights_bytes": 2**30,
        "mmap": False,
        "prefill_chunk": 512,
        "cuda_graphs": False,
    }
    got = build(settings=Settings(context=8192, extra_flags=("--mmap", "a b"), threads=8, gpu_layers=0, **later))  # type: ignore[arg-type]
    assert {k for k in got if k.startswith("settings.")} == {f"settings.{f.name}" for f in fields(Settings)}
    assert got["settings.extra_flags"] == "--mmap 'a b'"
    assert got["settings.threads"] == "8"
    assert got["settings.gpu_layers"] == "0"
    assert got["settings.prefix_cache"] == "on"


def test_a_setting_that_came_later_is_left_out_while_it_is_not_used() -> None:
    """Baselines from before have no such key, and must stay comparable."""
    assert "settings.memory_share" not in build()
    assert build(settings=Settings(context=8192, mmap=False))["settings.mmap"] == "off"


def test_settings_left_open_say_what_that_means() -> None:
    got = build()
    assert got["settings.gpu_layers"] == "all"
    assert got["settings.threads"] == "chosen by the engine"
    assert got["settings.extra_flags"] == "none"


def test_several_gpus_are_listed_by_index() -> None:
    second = replace(GPU, index=1, name="NVIDIA GeForce RTX 4090", power_limit_watts=None, ecc=True)
    got = build(gpus=(second, GPU))
    assert got["gpu.count"] == "2"
    assert got["gpu.name"] == "NVIDIA GeForce RTX 3090, NVIDIA GeForce RTX 4090"
    assert got["gpu.memory"] == "24.00 GiB, 24.00 GiB"
    assert got["gpu.power_limit"] == "350 W, not known"
    assert got["gpu.ecc"] == "not known, on"


def test_no_gpu_is_not_known() -> None:
    got = build(gpus=())
    assert (got["gpu.count"], got["gpu.name"]) == ("0", "not known")


def test_noted_facts_are_no_part_of_it() -> None:
    other = replace(GPU, uuid="GPU-1", pci_bus_id="0000:01:00.0", vbios="94.02", persistence=True)
    assert build(gpus=(other,)) == build()
    assert build(model=replace(MODEL, path="/elsewhere/a.gguf")) == build()


def test_a_few_mib_of_host_memory_are_no_difference_but_of_gpu_memory_they_are() -> None:
    def memory(kind: DeviceKind, size: int) -> str:
        return build(gpus=(replace(GPU, kind=kind, memory_bytes=size),))["gpu.memory"]

    assert memory(DeviceKind.CPU, 16 * GIB) == memory(DeviceKind.CPU, 16 * GIB - 20 * MIB) == "16 GiB"
    assert memory(DeviceKind.GPU, 16 * GIB) != memory(DeviceKind.GPU, 16 * GIB - 20 * MIB)


ANSWER = KnownAnswer(prompt="2+2=", expect=("4",))


def test_prompt_hash_is_stable() -> None:
    assert prompt_hash(Workload(), (ANSWER,)) == prompt_hash(Workload(), (KnownAnswer(prompt="2+2=", expect=("4",)),))
    assert len(prompt_hash(Workload(), ())) == 64


@pytest.mark.parametrize(
    ("workload", "answers"),
    [
        (Workload(seed=1), (ANSWER,)),
        (Workload(context_fills=(0.5,)), (ANSWER,)),
        (Workload(), ()),
        (Workload(), (ANSWER, ANSWER)),
        (Workload(), (replace(ANSWER, prompt="2+3="),)),
        (Workload(), (replace(ANSWER, expect=("4", "four")),)),
        (Workload(), (replace(ANSWER, max_tokens=8),)),
    ],
)
def test_prompt_hash_sees_every_change(workload: Workload, answers: tuple[KnownAnswer, ...]) -> None:
    assert prompt_hash(workload, answers) != prompt_hash(Workload(), (ANSWER,))


def test_prompt_hash_does_not_hang_on_a_note() -> None:
    assert prompt_hash(Workload(), (replace(ANSWER, margin=2.5),)) == prompt_hash(Workload(), (ANSWER,))


def test_a_witness_is_not_part_of_the_prompts() -> None:
    """It judges nothing, so baselines from before it was there stay comparable."""
    witness = KnownAnswer(prompt="What is the capital of France?", expect=("The",), margin=0.1, max_tokens=1)
    assert prompt_hash(Workload(), (ANSWER, witness)) == prompt_hash(Workload(), (ANSWER,))
    assert prompt_hash(Workload(), (ANSWER, replace(witness, margin=1.7))) != prompt_hash(Workload(), (ANSWER,))


def test_differences_name_both_sides() -> None:
    assert differences({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "4", "d": "5"}) == (
        Difference(field="b", base="2", now="4"),
        Difference(field="c", base="3", now="absent"),
        Difference(field="d", base="absent", now="5"),
    )
    assert str(Difference(field="driver", base="570", now="580")) == "driver 570 → 580"


words = st.text("ab.", max_size=3)


@given(st.dictionaries(words, words, max_size=5))
def test_nothing_differs_from_itself(one: dict[str, str]) -> None:
    assert differences(one, dict(one)) == ()


BASE = Stack(driver="570", cuda_driver="12.8", engine="llama.cpp", libraries={"cublas": "12.8", "cudart": "12.8"})


def test_stack_changes_include_libraries_and_what_is_not_known() -> None:
    now = replace(BASE, driver="580", toolkit="13.0", libraries={"cublas": "13.0", "nccl": "2.28"})
    assert [str(c) for c in stack_changes(BASE, now)] == [
        "driver 570 → 580",
        "toolkit not known → 13.0",
        "libraries.cublas 12.8 → 13.0",
        "libraries.cudart 12.8 → absent",
        "libraries.nccl absent → 2.28",
    ]
    assert stack_changes(BASE, BASE) == ()


def test_every_field_of_the_stack_is_under_test() -> None:
    assert set(STACK_FIELDS) == {f.name for f in fields(Stack)}
    assert VARYING_WORDS == ("driver", "cuda", "engine", "libraries", "kernel")


@pytest.mark.parametrize(
    ("varying", "forbidden"),
    [
        (None, []),
        (frozenset({"driver", "cuda", "libraries"}), []),
        (frozenset({"driver"}), ["cuda_driver", "toolkit", "libraries.cublas"]),
        (frozenset({"cuda", "kernel"}), ["driver", "libraries.cublas"]),
        (frozenset[str](), ["driver", "cuda_driver", "toolkit", "libraries.cublas"]),
    ],
)
def test_only_what_may_vary_may_move(varying: frozenset[str] | None, forbidden: list[str]) -> None:
    now = replace(BASE, driver="580", cuda_driver="13.0", toolkit="13.0", libraries={"cublas": "13", "cudart": "12.8"})
    assert [c.field for c in not_allowed_to_vary(stack_changes(BASE, now), varying)] == forbidden


def test_the_engine_word_covers_name_version_and_build() -> None:
    now = replace(BASE, engine="sglang", engine_version="0.5", engine_build="abc")
    assert len(stack_changes(BASE, now)) == 3
    assert not_allowed_to_vary(stack_changes(BASE, now), frozenset({"engine"})) == ()


def test_a_refusal_lists_every_field_with_both_sides() -> None:
    moved = stack_changes(BASE, replace(BASE, driver="580", cuda_driver="13.0", libraries={"cudart": "12.8"}))
    differing = differences({"gpu.ecc": "on", "settings.batch": "512"}, {"gpu.ecc": "off", "settings.batch": "256"})
    varying = frozenset({"driver"})
    forbidden = not_allowed_to_vary(moved, varying)
    assert refusal(differing, forbidden, varying) == (
        "must match but differs: gpu.ecc on → off, settings.batch 512 → 256; "
        "only driver may vary, but this moved: CUDA driver 12.8 → 13.0, library cublas 12.8 → absent"
    )
    assert refusal((), forbidden, frozenset()).startswith("only nothing may vary, but this moved: CUDA driver")
    assert refusal((), (), varying) == ""


def test_parse_varying() -> None:
    assert parse_varying("driver,cuda") == {"driver", "cuda"}
    assert parse_varying(" engine , engine") == {"engine"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("drivr", r"'drivr' cannot vary \(did you mean 'driver'\?\): choose from driver, cuda, engine"),
        ("driver,gpu", "'gpu' cannot vary"),
        ("", "'' cannot vary"),
        ("driver,", "'' cannot vary"),
    ],
)
def test_parse_varying_refuses_other_words(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_varying(text)


def test_asking_fewer_known_answers_changes_the_prompts_and_asking_at_most_as_many_as_there_are_does_not() -> None:
    answers = tuple(KnownAnswer(prompt=f"What is {number}?", expect=(str(number),)) for number in range(5))
    everything = prompt_hash(Workload(), answers)
    assert prompt_hash(Workload(known_answers=5), answers) == everything
    assert prompt_hash(Workload(known_answers=2), answers) == prompt_hash(Workload(), (answers[0], answers[2]))
    assert prompt_hash(Workload(known_answers=2), answers) != everything
