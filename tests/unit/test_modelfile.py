from __future__ import annotations

import contextlib
import hashlib
import io
import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from pytest_moegpu.errors import ModelFileError
from pytest_moegpu.host import checksum
from pytest_moegpu.host.checksum import sha256_of
from pytest_moegpu.host.ggufheader import read_header
from pytest_moegpu.host.modelfile import facts_of, model_file, read_gguf
from tests.fakes.gguf import write_gguf


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEGPU_CACHE", str(tmp_path_factory.mktemp("cache")))


def _write(path: Path, change: Callable[[gguf.GGUFWriter], None] | None = None, arch: str = "llama") -> Path:
    return write_gguf(path, change, arch=arch, vocabulary=300, context=2048)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return _write(tmp_path / "tiny.gguf", lambda w: w.add_head_count_kv(2))


def test_facts_of_a_dense_model(tiny: Path) -> None:
    facts = read_gguf(tiny)
    assert (facts.architecture, facts.name, facts.licence) == ("llama", "Tiny Llama 1.1B", "apache-2.0")
    assert (facts.layers, facts.kv_layers, facts.embedding, facts.heads, facts.kv_heads) == (4, 4, 64, 8, 2)
    assert (facts.head_dim, facts.vocabulary, facts.context_train) == (8, 300, 2048)
    assert (facts.experts, facts.experts_used, facts.quantisation) == (0, 0, "Q4_1")
    assert facts.size_bytes == tiny.stat().st_size
    assert facts.tensor_types == {"F16": 1, "F32": 1}


def test_facts_agree_with_the_reference_reader(tiny: Path) -> None:
    reader = gguf.GGUFReader(tiny)
    header = read_header(tiny)
    assert header.data_offset == reader.data_offset
    assert [(t.name, header.data_offset + t.offset) for t in header.tensors] == [
        (t.name, t.data_offset) for t in reader.tensors
    ]
    assert header.metadata["llama.block_count"] == reader.fields["llama.block_count"].contents()


def test_facts_of_a_mixture_of_experts_with_few_kv_layers(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_head_count_kv(2)
        writer.add_key_length(256)
        writer.add_vocab_size(248_320)
        writer.add_expert_count(256)
        writer.add_expert_used_count(8)
        writer.add_uint32("qwen35moe.full_attention_interval", 4)

    facts = read_gguf(_write(tmp_path / "moe.gguf", change, "qwen35moe"))
    assert (facts.kv_layers, facts.head_dim, facts.vocabulary) == (1, 256, 248_320)
    assert (facts.experts, facts.experts_used) == (256, 8)


def test_layers_without_kv_heads_do_not_count(tmp_path: Path) -> None:
    facts = read_gguf(_write(tmp_path / "hybrid.gguf", lambda w: w.add_head_count_kv([0, 2, 0, 2])))
    assert (facts.kv_layers, facts.kv_heads) == (2, 2)


def test_file_type_unknown_to_the_library_falls_back_to_the_heaviest_tensors(tmp_path: Path) -> None:
    path = _write(tmp_path / "new.gguf", lambda w: w.add_uint32("general.other", 1))
    raw = path.read_bytes()
    key = raw.index(b"general.file_type") + len(b"general.file_type") + 4
    path.write_bytes(raw[:key] + struct.pack("<I", 999) + raw[key + 4 :])
    assert read_gguf(path).quantisation == "F16"


def test_facts_of_becomes_a_model(tiny: Path) -> None:
    model = facts_of(read_gguf(tiny))
    assert (model.name, model.title) == ("tiny-llama-1.1b", "Tiny Llama 1.1B")
    assert (model.recurrent_bytes_per_slot, model.kv_layers, model.kv_heads) == (0, 4, 2)
    assert (model.quantisation, model.sha256, model.source) == ("Q4_1", None, None)


def test_model_file(tiny: Path) -> None:
    file = model_file(tiny)
    assert Path(file.path) == tiny
    assert file.sha256 == hashlib.sha256(tiny.read_bytes()).hexdigest()
    assert (file.size_bytes, file.quantisation) == (tiny.stat().st_size, "Q4_1")


def test_split_model_counts_all_parts(tiny: Path, tmp_path: Path) -> None:
    first = tiny.rename(tmp_path / "big-00001-of-00002.gguf")
    with pytest.raises(ModelFileError, match=r"big-00002-of-00002\.gguf: does not exist"):
        read_gguf(first)
    second = _part(tmp_path / "big-00002-of-00002.gguf", {"blk.0.attn_q.weight": 4})
    assert read_gguf(first).size_bytes == first.stat().st_size + second.stat().st_size
    one = model_file(first).sha256
    _part(second, {"blk.0.attn_q.weight": 8})
    assert model_file(first).sha256 != one
    with pytest.raises(ModelFileError, match=r"name the first one, big-00001-of-00002\.gguf"):
        read_gguf(second)


def _part(path: Path, tensors: dict[str, int], **keys: int) -> Path:
    """Write a later part, which has nothing but its place and tensors; `split_no` stands for `split.no`."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in keys.items():
        writer.add_uint16(key.replace("_", "."), value)
    for name, rows in tensors.items():
        writer.add_tensor(name, np.zeros((rows, 64), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("keys", "tensors", "message"),
    [
        (
            {"split_count": 3},
            {"b": 1},
            r"00002-of-00002\.gguf: is one of 3 parts by its header, and by its name one of 2",
        ),
        ({"split_no": 0}, {"b": 1}, r"stands as part 2 of 2, and its header counts it as 0 from 0"),
        ({}, {"token_embd.weight": 1}, r"tensor token_embd\.weight is in an earlier part, too"),
        ({}, {"b": 1, "c": 1}, r"00001-of-00002\.gguf: has 4 tensors in all its parts, and by its header 3"),
    ],
    ids=["another-count", "cycle", "twice", "missing"],
)
def test_parts_that_do_not_belong_together_are_one_error(
    tmp_path: Path, keys: dict[str, int], tensors: dict[str, int], message: str
) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_uint16("split.count", 2)
        writer.add_uint16("split.no", 0)
        writer.add_int32("split.tensors.count", 3)

    first = _write(tmp_path / "m-00001-of-00002.gguf", change)
    _part(tmp_path / "m-00002-of-00002.gguf", {"b": 1}, split_no=1, split_count=2)
    assert read_gguf(first).layers == 4
    _part(tmp_path / "m-00002-of-00002.gguf", tensors, **keys)
    with pytest.raises(ModelFileError, match=message):
        read_gguf(first)


def test_a_first_part_whose_name_does_not_say_so_is_told(tmp_path: Path) -> None:
    path = _write(tmp_path / "renamed.gguf", lambda w: w.add_uint16("split.count", 2))
    with pytest.raises(ModelFileError, match="is one of 2 parts by its header, and by its name one of 1"):
        read_gguf(path)


@pytest.mark.parametrize("name", ["m-00001-of-00000.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf"])
def test_a_part_that_cannot_be_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match=r"cannot be part \d of \d, as its name has it"):
        read_gguf(_write(tmp_path / name))


def test_tensors_in_the_same_place_are_told(tiny: Path) -> None:
    raw = tiny.read_bytes()
    at = raw.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8 + 4
    tiny.write_bytes(raw[:at] + struct.pack("<Q", 32) + raw[at + 8 :])
    with pytest.raises(ModelFileError, match=r"its tensors token_embd\.weight and output_norm\.weight lie in the same"):
        read_gguf(tiny)


def test_the_state_of_a_hybrid_is_known_from_its_header(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        for key, value in (("conv_kernel", 4), ("inner_size", 4096), ("state_size", 128), ("group_count", 16)):
            writer.add_uint32(f"qwen35moe.ssm.{key}", value)

    model = facts_of(read_gguf(_write(tmp_path / "hybrid.gguf", change, "qwen35moe")))
    # Every fourth layer is attention where the file does not say which; 3 x (4,096 x 128 + 3 x 8,192) x 4 bytes.
    assert (model.kv_layers, model.recurrent_layers, model.recurrent_bytes_per_slot) == (1, 3, 6_586_368)
    unknown = facts_of(
        read_gguf(_write(tmp_path / "new.gguf", lambda w: w.add_uint32("newfangled.ssm.inner_size", 9), "newfangled"))
    )
    assert unknown.recurrent_bytes_per_slot is None


def test_layers_of_multi_token_prediction_are_no_layers_of_the_model(tmp_path: Path) -> None:
    model = facts_of(
        read_gguf(_write(tmp_path / "m.gguf", lambda w: w.add_uint32("glm4moe.nextn_predict_layers", 1), "glm4moe"))
    )
    assert (model.layers, model.kv_layers, model.mtp_layers) == (3, 3, 1)
    bad = _write(tmp_path / "bad.gguf", lambda w: w.add_uint32("glm4moe.nextn_predict_layers", 4), "glm4moe")
    with pytest.raises(ModelFileError, match="4 of its 4 layers are said to predict ahead"):
        read_gguf(bad)


def test_missing_file_names_the_nearest(tiny: Path) -> None:
    with pytest.raises(ModelFileError, match=r"does not exist \(did you mean 'tiny\.gguf'\?\)"):
        read_gguf(tiny.with_name("Tinny.GGUF"))


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="does not exist, nor does its folder"):
        read_gguf(tmp_path / "no" / "model.gguf")


def test_a_folder_names_a_file_in_it(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"is a folder: name a file in it, e\.g\. tiny\.gguf"):
        read_gguf(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match=r"is a folder without a \.gguf file"):
        read_gguf(tmp_path / "empty")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 a zip", r"is not a GGUF file: it starts with b'PK\\x03\\x04'"),
        (b"GG", r"is not a GGUF file: it starts with b'GG'"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n", "is a Git LFS pointer"),
        (b"GGUF", "is truncated: it ends within its header"),
        (b"GGUF" + struct.pack("<I", 1), "GGUF version is 1"),
        (b"GGUF" + struct.pack(">I", 3), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60), "ends within its header"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77), "a value has the unknown type 77"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**60), "ends within its header"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), r"has no ARCHITECTURE\.block_count"),
    ],
    ids=["empty", "zip", "short", "lfs", "magic-only", "old", "big-endian", "counts", "type", "array", "no-keys"],
)
def test_what_is_not_a_whole_model(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message) as caught:
        read_gguf(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_truncated_tensor_data_says_how_much_is_missing(tiny: Path) -> None:
    whole = tiny.read_bytes()
    tiny.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError, match=r"tensors end at byte \d+, the file has \d+ \(\d+\.\d%\)"):
        read_gguf(tiny)


def test_every_truncation_and_many_damages_end_in_one_error(tiny: Path) -> None:
    whole = tiny.read_bytes()
    header = read_header(tiny).data_offset
    rng = np.random.default_rng(7)
    for cut in rng.integers(1, header, 60):
        tiny.write_bytes(whole[:cut])
        with pytest.raises(ModelFileError):
            read_gguf(tiny)
    for at, value in zip(rng.integers(4, header, 150), rng.integers(0, 256, 150), strict=True):
        damaged = bytearray(whole)
        damaged[at] = value
        tiny.write_bytes(damaged)
        with contextlib.suppress(ModelFileError):
            read_gguf(tiny)


def test_a_projector_is_not_a_language_model(tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=r"has no clip\.block_count in its metadata \(mmproj\)"):
        read_gguf(path)


@pytest.mark.skipif(os.name == "nt", reason="POSIX only")
def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="is not a regular file"):
        read_gguf(tmp_path / "pipe.gguf")


def test_checksum_is_computed_once_until_the_file_changes(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    real = checksum._hash

    def counted(path: Path) -> str:
        calls.append(path)
        return real(path)

    monkeypatch.setattr(checksum, "_hash", counted)
    first = sha256_of(tiny)
    assert sha256_of(tiny) == first
    assert len(calls) == 1
    raw = bytearray(tiny.read_bytes())
    raw[-1] ^= 1
    tiny.write_bytes(raw)
    os.utime(tiny, ns=(1, 1))
    assert sha256_of(tiny) != first
    assert len(calls) == 2


def test_damaged_checksum_notes_and_a_cache_that_cannot_be_written_do_no_harm(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sha256_of(tiny)
    for note in (Path(os.environ["MOEGPU_CACHE"]) / "checksums").iterdir():
        note.write_bytes(b"[]")
    assert sha256_of(tiny) == first
    monkeypatch.setenv("MOEGPU_CACHE", str(tiny))
    assert sha256_of(tiny) == first


def test_checksum_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read"):
        sha256_of(tmp_path / "none.gguf")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_only_for_large_files_on_a_terminal(
    terminal: bool, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    stream = Stream()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(checksum, "GIB", 1)
    sha256_of(tiny)
    assert ("checksum of tiny.gguf" in stream.getvalue()) is terminal


def test_a_later_part_that_is_damaged_is_the_one_that_is_named(tmp_path: Path) -> None:
    first, second = _write(tmp_path / "m-00001-of-00002.gguf"), tmp_path / "m-00002-of-00002.gguf"
    second.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0))
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf: is truncated: it ends within its header"):
        read_gguf(first)
    second.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 77))
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf: is damaged .*: a value has the unknown type 77"):
        read_gguf(first)


def test_parts_that_are_links_to_each_other_end(tmp_path: Path) -> None:
    first, second = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    _write(first, lambda w: w.add_uint16("split.count", 2))
    second.symlink_to(first.name)
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf: its tensor token_embd\.weight is in an earlier"):
        read_gguf(first)
    first.unlink()
    first.symlink_to(second.name)
    with pytest.raises(ModelFileError, match=r"m-00001-of-00002\.gguf: (does not exist|cannot be read)"):
        read_gguf(first)


def test_a_name_of_many_parts_is_answered_at_the_first_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"m-00002-of-99999\.gguf: does not exist"):
        read_gguf(_write(tmp_path / "m-00001-of-99999.gguf"))
