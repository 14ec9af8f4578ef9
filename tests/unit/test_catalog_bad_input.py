from __future__ import annotations

from pathlib import Path

import pytest

from pytest_moegpu.catalog import Catalog, parse_duration
from pytest_moegpu.errors import CatalogError, UserError
from tests.unit.catalog_files import MODEL, PROFILE, SCENARIO, write


def scenario_error(folder: Path, text: str) -> str:
    file = write(folder, "scenarios", "mine", text)
    with pytest.raises(CatalogError) as caught:
        Catalog.load([folder]).scenario("mine")
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    return message.removeprefix(f"{file}: ")


def edited(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("prompt_tokens", "prompt_tokns", "workload.prompt_tokns: unknown key (did you mean 'prompt_tokens'?); al"),
        ("[workload]", "[worklod]", "worklod: unknown key (did you mean 'workload'?); allowed: schema, name"),
        ("prompt_tokens = 256", "prompt_tokens = '256'", "workload.prompt_tokens: '256' is not allowed: write a whole"),
        ("prompt_tokens = 256", "prompt_tokens = true", "workload.prompt_tokens: True is not allowed: write a whole"),
        ("context = 2048", "", "settings.context: this key is required"),
        ("[settings]\ncontext = 2048", "", "settings.context: this key is required"),
        ('title = "Mine"', "", "title: this key is required"),
        ('name = "mine"', "", "name: this key is required"),
        ("schema = 1", "", "schema: this key is required"),
        ("schema = 1", "schema = 2", "schema: 2 is not a known version of the format: write 1"),
        ('name = "mine"', 'name = "other"', "name: 'other' is not the file's name 'mine'"),
        ('name = "mine"', 'name = "../mine"', "name: '../mine' is not a name"),
        ("context = 2048", "context = 0", "settings.context: 0 is not allowed: write a whole number of at least 1"),
        ("context = 2048", "context = -1", "settings.context: -1 is not allowed"),
        ("context = 2048", "context = 2048\nslots = 0", "settings.slots: 0 is not allowed"),
        ("context = 2048", "context = 2048\nkv_cache = 'q8_O'", "settings.kv_cache: 'q8_O' is not allowed (did you"),
        ("context = 2048", "context = 2048\nkv_cache = 'int9'", "one of f32, f16, bf16, fp8_e4m3, fp8_e5m2, int8"),
        ("context = 2048", "context = 2048\nflash_attention = true", "settings.flash_attention: True is not allowed;"),
        ("context = 2048", "context = 2048\ngpu_layers = 'al'", "settings.gpu_layers: 'al' is not allowed: write"),
        ("context = 2048", "context = 2048\nthinking = 'no'", "settings.thinking: 'no' is not allowed: write true or"),
        ("context = 2048", "context = 2048\nextra_flags = '-x'", "settings.extra_flags: '-x' is not allowed: write"),
        ("prompt_tokens = 256", "context_fills = [0.5, 1.2]", "workload.context_fills: 1.2 is not a share"),
        ("prompt_tokens = 256", "context_depths = [-0.1]", "workload.context_depths: -0.1 is not a share"),
        ("prompt_tokens = 256", "context_fills = []", "workload.context_fills: [] is not allowed: write a list"),
        ("prompt_tokens = 256", "context_fills = [0]", "workload.context_fills: 0 is an empty prompt"),
        ("prompt_tokens = 256", "prompt_tokens = 2000", "workload.prompt_tokens: 2000 and 256 output tokens do not"),
        ('"23.5 GiB"', '"23.5 Gib"', "limits.memory_budget: '23.5 Gib' is not a size: write a number and a unit"),
        ('"23.5 GiB"', "23.5", "limits.memory_budget: 23.5 is not a size: write it in quotes with its unit"),
        ('"23.5 GiB"', '"0 GiB"', "limits.memory_budget: '0 GiB' is not allowed: write a size of at least 1 B"),
        ('"23.5 GiB"', '"1 GiB"\ndecode_min = "90 t/s"', "limits.decode_min: '90 t/s' is not a speed: write '90"),
        ('"23.5 GiB"', '"1 GiB"\nprefill_min = 0', "limits.prefill_min: 0 is not a speed"),
        ('"23.5 GiB"', '"1 GiB"\nready = "10 m"', "limits.ready: '10 m' is not a time: write a number above zero"),
        ('"23.5 GiB"', '"1 GiB"\nrecall_min_share = "120 %"', "limits.recall_min_share: '120 %' is more than 100 %"),
        ('decode = "5 %"', 'decod = "5 %"', "limits.tolerance.decod: unknown key (did you mean 'decode'?); allowed:"),
        ('decode = "5 %"', 'decode = "5 ms"', "limits.tolerance.decode: '5 ms' is not a share"),
        ("[limits.tolerance]\ndecode", "tolerance", "limits.tolerance: '5 %' is not a table: write [limits.tolerance]"),
        ("title =", 'model = "smollm"\ntitle =', "model: unknown model 'smollm'"),
        ("title =", 'extends = "balanced-6"\ntitle =', "extends: unknown scenario 'balanced-6' (did you mean 'bala"),
        ("title =", 'extends = "mine"\ntitle =', "extends: 'mine' is this file itself"),
        ("[settings]", "[settings", "line 5: not valid TOML: "),
        ("5 %", "5", "limits.tolerance.decode: '5' is more than 100 %"),
    ],
)  # fmt: skip
def test_a_bad_scenario_is_one_clear_error(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert says in scenario_error(tmp_path, edited(SCENARIO, old, new))


def test_toml_cut_short_names_the_last_line(tmp_path: Path) -> None:
    assert scenario_error(tmp_path, 'schema = 1\nname = "mine"\ntitle = ').startswith("line 3: not valid TOML")


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "scenarios", "mine", "")
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CatalogError, match=r"mine\.toml: cannot be read as UTF-8 text"):
        Catalog.load([tmp_path])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"nvml"', '"nvlm"', "probe: 'nvlm' is not allowed (did you mean 'nvml'?); one of nvml, host"),
        ('"nvml"', '"host"', "probe: 'host' does not read a gpu"),
        ('["mine"]', '["mine", "long8k"]', "scenarios[2]: unknown scenario 'long8k' (did you mean 'long-8k'?); known:"),
        ('["mine"]', "[]", "scenarios: [] is not allowed: write a list in [ ] of at least 1 items"),
        ("qwen3.6-35b-a3b", "qwen3.6-35b", "model: unknown model 'qwen3.6-35b' (did you mean 'qwen3.6-35b-a3b'?)"),
        ('["NVIDIA RTX A6000"]', "[]", "gpu.names: a GPU profile must name at least one GPU"),
        ('"48000 MiB"', '"48000 MB/s"', "gpu.memory: '48000 MB/s' is not a size"),
        ("memory =", "count = 0\nmemory =", "gpu.count: 0 is not allowed"),
        ("memory =", 'kind = "tpu"\nmemory =', "gpu.kind: 'tpu' is not allowed"),
        ("memory =", "compute_capability = 8.6\nmemory =", "gpu.compute_capability: 8.6 is not a compute capability"),
        ('memory = "48000 MiB"', "", "gpu.memory: this key is required"),
        ("[gpu]", "[limits]\nmemory_budgt = '1 GiB'\n[gpu]", "limits.memory_budgt: unknown key (did you mean 'memory"),
        ("[gpu]", "gpu = 1\n[limits]", "gpu: 1 is not a table: write [gpu] and its keys below"),
    ],
)  # fmt: skip
def test_a_bad_profile_is_one_clear_error(tmp_path: Path, old: str, new: str, says: str) -> None:
    write(tmp_path, "scenarios", "mine", SCENARIO)
    text = edited(PROFILE, old, new)
    file = write(tmp_path, "profiles", "box", text.split("names =")[0] if "gpu = 1" in new else text)
    with pytest.raises(CatalogError) as caught:
        Catalog.load([tmp_path]).profile("box")
    assert str(caught.value).startswith(f"{file}: {says}")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kv_layers = 2", "kv_layers = 3", "kv_layers: 3 is more than layers = 2"),
        ("layers = 2", "layers = 2.5", "layers: 2.5 is not allowed"),
        ("expect =", "expct =", "known_answers[1].expct: unknown key (did you mean 'expect'?)"),
        ('expect = ["two"]', "", "known_answers[1].expect: this key is required"),
        ('expect = ["two"]', "expect = []", "known_answers[1].expect: [] is not allowed"),
        ('expect = ["two"]', 'expect = ["two"]\nmargin = 0', "known_answers[1].margin: 0 is not allowed"),
        ('expect = ["two"]', 'expect = ["two"]\nrule = "wrd"', "known_answers[1].rule: 'wrd' is not allowed (did you"),
        ('expect = ["two"]', 'expect = ["two"]\nrule = "json"', "known_answers[1].expect: 'two' is no JSON object"),
        ('expect = ["two"]', 'expect = ["two"]\nname = "a b"', "known_answers[1].name: 'a b' is not a name"),
        ("[[known_answers]]", "[known_answers]", "known_answers: {'prompt': 'one plus one?', 'expect': ['two']} is"),
        ("embedding", "experts_used = 2\nembedding", "experts_used: 2 is more than experts = 0"),
        ("[[known", "[file]\nsize_bytes = 1\n[[known", "file.sha256: this key is required"),
        ("[[known", "[file]\nsha256 = 'AB'\n[[known", "file.sha256: 'AB' is not a SHA-256: write 64 lower-case"),
        ("[[known", "[source]\npackage = 'p'\n[[known", "source.version: this key is required"),
    ],
)  # fmt: skip
def test_a_bad_model_is_one_clear_error(tmp_path: Path, old: str, new: str, says: str) -> None:
    file = write(tmp_path, "models", "tiny", edited(MODEL, old, new))
    with pytest.raises(CatalogError) as caught:
        Catalog.load([tmp_path]).model("tiny")
    assert str(caught.value).startswith(f"{file}: {says}")


def test_unknown_names_offer_the_nearest_and_list_all() -> None:
    catalog = Catalog.load()
    with pytest.raises(CatalogError, match=r"unknown profile 'rtx390' \(did you mean 'rtx3090'\?\); known: emb"):
        catalog.profile("rtx390")
    with pytest.raises(CatalogError, match=r"unknown scenario 'balanced6k' \(did you mean 'balanced-6k'\?\); known: "):
        catalog.scenario("balanced6k")
    with pytest.raises(CatalogError, match=r"unknown model 'llama'; known: deepseek-v2-lite, "):
        catalog.model("llama")


def test_folders_that_cannot_be_meant(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"nowhere: no such folder; it may hold profiles/, models/, scenarios/"):
        Catalog.load([tmp_path / "nowhere"])
    assert Catalog.load([tmp_path]).profiles()
    (tmp_path / "mine.toml").write_text(SCENARIO)
    with pytest.raises(CatalogError, match=r"mine\.toml: put it in one of the folders profiles/, models/, scenarios/"):
        Catalog.load([tmp_path])


def test_an_error_in_an_extended_file_names_that_file(tmp_path: Path) -> None:
    base = write(tmp_path, "scenarios", "a", 'schema = 1\nname = "a"\nextends = "long-8k"\n[settings]\nslts = 2\n')
    write(tmp_path, "scenarios", "b", 'schema = 1\nname = "b"\nextends = "a"\n')
    with pytest.raises(CatalogError) as caught:
        Catalog.load([tmp_path]).scenario("b")
    assert str(caught.value).startswith(f"{base}: settings.slts: unknown key (did you mean 'slots'?)")


def test_a_circle_of_extends_is_named(tmp_path: Path) -> None:
    for name, base in (("a", "b"), ("b", "c"), ("c", "a")):
        write(tmp_path, "scenarios", name, f'schema = 1\nname = "{name}"\nextends = "{base}"\n')
    with pytest.raises(CatalogError, match=r"a\.toml: extends: goes round in a circle: a → b → c → a"):
        Catalog.load([tmp_path]).scenario("a")


def test_a_shipped_name_needs_extends(tmp_path: Path) -> None:
    file = write(tmp_path, "scenarios", "long-8k", edited(SCENARIO, '"mine"', '"long-8k"'))
    with pytest.raises(CatalogError) as caught:
        Catalog.load([tmp_path])
    message = str(caught.value)
    shipped = Path("catalog", "scenarios", "long-8k.toml")
    assert str(file) in message
    assert str(shipped) in message
    assert 'extends = "long-8k"' in message


@pytest.mark.parametrize("written", ["10", "10 m", "s", "-1 s", 0, -1, True, float("nan"), float("inf"), [], "0 s"])
def test_parse_duration_refuses(written: object) -> None:
    with pytest.raises(UserError, match="is not a time"):
        parse_duration(written)
