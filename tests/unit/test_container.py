"""What runners are told: docker, podman, apptainer, with and without sudo; and what is read from their answers."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moegpu.backends.base import SetupCommand
from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.core.container import End, Launch, Mount, devices_of, inside, wrap
from pytest_moegpu.core.model import Container, DeviceKind, Gpu, LaunchSpec, Settings
from pytest_moegpu.core.runner import RunnerKind, image_argv, read_image, runner_fault, runner_kind
from pytest_moegpu.errors import UserError
from pytest_moegpu.host.container import mounts_of, prepare
from pytest_moegpu.host.ending import run
from pytest_moegpu.session.contained import launch_of

UUIDS = ("GPU-aaaa", "GPU-bbbb")
SPEC = LaunchSpec(
    program=("/usr/bin/llama-server",),
    model_path="/models/m.gguf",
    model_name="m",
    settings=Settings(context=4096),
    host="127.0.0.1",
    port=18081,
    api_key="secret",
    devices=UUIDS,
)
VARIABLES = {"LLAMA_API_KEY": "secret", "CUDA_VISIBLE_DEVICES": "0,1"}
MOUNTS = (Mount(source="/models/m.gguf", target="/models/m.gguf"),)


def boxed(*runner: str, flags: tuple[str, ...] = (), spec: LaunchSpec = SPEC) -> LaunchSpec:
    return replace(spec, container=Container(image="example/server:1", runner=runner, flags=flags))


def written(spec: LaunchSpec, mounts: tuple[Mount, ...] = MOUNTS) -> Launch:
    return wrap(spec, ("llama-server", "--port", "18081"), VARIABLES, name="moegpu-1", mounts=mounts, grace=7.5)


def test_docker_is_given_port_gpus_model_and_the_names_of_variables() -> None:
    launch = written(boxed("docker", flags=("--shm-size=8g",)))
    assert shlex.join(launch.argv) == (
        "docker run --rm --init --pull=never --name moegpu-1 --label pytest-moegpu=moegpu-1 "
        "--publish 127.0.0.1:18081:18081 "
        "--gpus '\"device=GPU-aaaa,GPU-bbbb\"' "
        "--mount type=bind,source=/models/m.gguf,target=/models/m.gguf,readonly "
        "--env LLAMA_API_KEY --env CUDA_VISIBLE_DEVICES --shm-size=8g "
        "--entrypoint llama-server example/server:1 --port 18081"
    )
    assert launch.environment == VARIABLES


def test_docker_ends_a_container_by_the_id_that_its_label_finds() -> None:
    assert written(boxed("docker")).end == End(
        listing=("docker", "ps", "--all", "--quiet", "--no-trunc", "--filter", "label=pytest-moegpu=moegpu-1"),
        commands=((("docker", "stop", "-t", "8"), 22.5), (("docker", "rm", "--force"), 20.0)),
    )


def test_podman_is_given_gpus_by_their_cdi_names() -> None:
    argv = shlex.join(written(boxed("podman")).argv)
    assert argv.startswith("podman run --rm --init --pull=never --name moegpu-1 ")
    assert "--device nvidia.com/gpu=GPU-aaaa --device nvidia.com/gpu=GPU-bbbb" in argv
    assert "--gpus" not in argv


def test_apptainer_runs_a_child_of_ours_on_the_hosts_network() -> None:
    launch = written(boxed("apptainer", spec=replace(SPEC, devices=("0",))))
    assert shlex.join(launch.argv) == (
        "apptainer exec --cleanenv --no-home --nv --bind /models/m.gguf:/models/m.gguf:ro example/server:1 "
        "llama-server --port 18081"
    )
    assert launch.environment == {"APPTAINERENV_LLAMA_API_KEY": "secret", "APPTAINERENV_CUDA_VISIBLE_DEVICES": "0,1"}
    assert launch.end is None
    assert set(written(boxed("singularity")).environment) == {f"SINGULARITYENV_{name}" for name in VARIABLES}


def test_apptainer_cannot_be_given_every_path() -> None:
    with pytest.raises(UserError, match="the path /models/a,b: it has a ':' or ','"):
        written(boxed("apptainer"), (Mount(source="/models/a,b", target="/models/m"),))


def test_sudo_must_not_ask_and_keeps_the_variables() -> None:
    launch = written(boxed("sudo", "/usr/bin/docker", "--context", "gpu"))
    assert launch.argv[:6] == (
        "sudo",
        "--non-interactive",
        "--preserve-env=LLAMA_API_KEY,CUDA_VISIBLE_DEVICES",
        "/usr/bin/docker",
        "--context",
        "gpu",
    )
    assert launch.end is not None
    assert launch.end.listing[:6] == ("sudo", "--non-interactive", "/usr/bin/docker", "--context", "gpu", "ps")
    assert launch.end.commands[1][0] == (*launch.end.listing[:5], "rm", "--force")


def test_a_path_with_a_comma_is_quoted_for_docker() -> None:
    argv = written(boxed("docker"), (Mount(source="/models/a,b.gguf", target="/models/a,b.gguf"),)).argv
    mount = argv[argv.index("--mount") + 1]
    assert mount == 'type=bind,"source=/models/a,b.gguf","target=/models/a,b.gguf",readonly'


@pytest.mark.parametrize("runner", ["docker", "podman", "apptainer"])
def test_a_processor_profile_asks_for_no_gpu(runner: str) -> None:
    argv = written(boxed(runner, spec=replace(SPEC, device_kind=DeviceKind.CPU, devices=()))).argv
    assert not {"--gpus", "--device", "--nv"} & set(argv)


def test_all_gpus_when_none_is_named() -> None:
    bare = replace(SPEC, devices=())
    docker, podman = (written(boxed(runner, spec=bare)).argv for runner in ("docker", "podman"))
    assert docker[docker.index("--gpus") + 1] == "all"
    assert podman[podman.index("--device") + 1] == "nvidia.com/gpu=all"


def test_inside_it_listens_for_the_forwarded_port_and_counts_its_gpus_from_0() -> None:
    within = inside(boxed("docker"), "llama-server")
    assert (within.program, within.host, within.port) == (("llama-server",), "0.0.0.0", 18081)
    assert within.devices == ("0", "1")
    named = replace(boxed("docker"), container=Container(image="i", program=("/app/llama-server", "serve")))
    assert inside(named, "llama-server").program == ("/app/llama-server", "serve")
    assert inside(SPEC, "llama-server") is SPEC


@pytest.mark.parametrize("flags", [("--network=host",), ("--net", "host"), ("--ipc=host", "--network", "host")])
def test_on_the_hosts_network_it_stays_on_the_loopback_address(flags: tuple[str, ...]) -> None:
    spec = boxed("docker", flags=flags)
    assert inside(spec, "llama-server").host == "127.0.0.1"
    assert "--publish" not in written(spec).argv


def test_apptainer_sees_all_gpus_and_is_told_which_to_use() -> None:
    within = inside(boxed("apptainer"), "llama-server")
    assert (within.host, within.devices) == ("127.0.0.1", UUIDS)


def test_without_a_container_the_command_is_the_backends_own() -> None:
    launch = launch_of(LlamaCpp(), SPEC, "moegpu-1")
    assert launch == Launch(argv=LlamaCpp().argv(SPEC), environment=LlamaCpp().environment(SPEC))


def test_a_backend_writes_its_command_for_the_inside() -> None:
    launch = launch_of(LlamaCpp(), boxed("docker"), "moegpu-1")
    image = launch.argv.index("example/server:1")
    inner = launch.argv[image + 1 :]
    assert launch.argv[image - 1] == "llama-server"
    assert inner[inner.index("--host") + 1] == "0.0.0.0"
    assert inner[inner.index("--model") + 1] == "/models/m.gguf"
    assert "secret" not in " ".join(launch.argv)
    assert launch.environment["LLAMA_API_KEY"] == "secret"
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_a_backend_with_commands_beside_its_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaCpp, "setup", lambda *_: (SetupCommand(argv=("create",)),))
    with pytest.raises(UserError, match="llamacpp needs commands beside its server"):
        launch_of(LlamaCpp(), boxed("docker"), "moegpu-1")


def test_devices_are_pinned_by_uuid_where_the_runner_hands_them_over() -> None:
    card = Gpu(index=1, name="NVIDIA H200", memory_bytes=1, uuid="GPU-aaaa", cuda_name="1")
    part = Gpu(index=0, name="NVIDIA H200 MIG 1g", memory_bytes=1, uuid="GPU-bbbb", cuda_name="MIG-cccc")
    processor = Gpu(index=0, name="Xeon", memory_bytes=1, kind=DeviceKind.CPU)
    assert devices_of(Container(image="i"), (part, card)) == ("MIG-cccc", "GPU-aaaa")
    assert devices_of(Container(image="i", runner=("apptainer",)), (part, card)) == ("MIG-cccc", "1")
    assert devices_of(None, (card,)) == ("1",)
    assert devices_of(Container(image="i"), (replace(card, uuid=None),)) == ("1",)
    assert devices_of(Container(image="i"), (processor,)) == ()


@pytest.mark.parametrize(
    ("runner", "kind"),
    [
        (("docker",), RunnerKind.DOCKER),
        (("/opt/bin/podman", "--remote"), RunnerKind.PODMAN),
        (("sudo", "docker"), RunnerKind.DOCKER),
        (("singularity",), RunnerKind.APPTAINER),
    ],
)
def test_the_kind_of_a_runner(runner: tuple[str, ...], kind: RunnerKind) -> None:
    assert runner_kind(runner) is kind


def test_an_unknown_runner_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"container\.runner: 'lxc run' is not known: write docker, podman or apptainer"
    ):
        runner_kind(("lxc", "run"))


@pytest.mark.parametrize(
    ("output", "image", "digest"),
    [
        ("sha256:11 vllm/vllm-openai@sha256:22", "vllm/vllm-openai:v0.22.1", "vllm/vllm-openai@sha256:22"),
        ("sha256:11 a/b@sha256:33 c/d@sha256:44", "c/d", "c/d@sha256:44"),
        ("sha256:11 docker.io/c/d@sha256:44", "c/d@sha256:44", "docker.io/c/d@sha256:44"),
        ("sha256:11 host:5000/c/d@sha256:44", "host:5000/c/d:1", "host:5000/c/d@sha256:44"),
        ("sha256:11 a/b@sha256:33", "renamed:1", "a/b@sha256:33"),
        ("sha256:11", "built-here", "sha256:11"),
        ("", "odd", ""),
    ],
)
def test_the_digest_of_an_image(output: str, image: str, digest: str) -> None:
    assert read_image(output, image) == digest


def test_an_image_is_described_and_never_fetched() -> None:
    argv = image_argv(Container(image="i:1", runner=("sudo", "podman")))
    assert argv[:5] == ("sudo", "--non-interactive", "podman", "image", "inspect")
    assert argv[-1] == "i:1"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Error: i:1: image not known", "the image is not here: fetch it with `podman pull i:1`"),
        ("sudo: a password is required", "sudo asks for a password: allow the command without one"),
        (
            "sudo: sorry, you are not allowed to preserve the environment",
            "sudo throws the server's variables away: allow SETENV",
        ),
        (
            "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
            "no CDI description of this GPU: run `nvidia-ctk cdi generate",
        ),
        ("unknown flag: --shm", "the runner does not know a flag of `container.flags`"),
    ],
)
def test_what_a_runner_complains_about(line: str, words: str) -> None:
    said = runner_fault(Container(image="i:1", runner=("podman",)), ["something before", line])
    assert said.startswith(words)
    assert said.endswith(f"({line})")


def test_a_complaint_that_is_not_known_says_nothing() -> None:
    assert runner_fault(Container(image="i:1"), ["loading the model", ""]) == ""


def test_a_model_file_is_mounted_where_it_is(tmp_path: Path) -> None:
    real = tmp_path / "blobs" / "1234"
    real.parent.mkdir()
    real.write_bytes(b"GGUF")
    link = tmp_path / "m.gguf"
    link.symlink_to(real)
    assert mounts_of(str(link)) == (Mount(source=str(real), target=str(link)),)
    assert mounts_of(str(real)) == (Mount(source=str(real), target=str(real)),)


def test_of_a_split_file_the_folder_is_mounted(tmp_path: Path) -> None:
    part = tmp_path / "m-00001-of-00002.gguf"
    part.write_bytes(b"GGUF")
    assert mounts_of(str(part)) == (Mount(source=str(tmp_path), target=str(tmp_path)),)


def test_of_a_folder_of_links_the_places_they_lead_to_are_mounted_too(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    folder.mkdir(parents=True)
    (blobs / "abcd").write_text("{}")
    (folder / "config.json").symlink_to("../../blobs/abcd")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "same.json").symlink_to("tokenizer.json")
    assert mounts_of(str(folder)) == (
        Mount(source=str(folder), target=str(folder)),
        Mount(source=str(blobs), target=str(blobs)),
    )


def test_an_image_file_is_known_by_its_checksum(tmp_path: Path) -> None:
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    image = tmp_path / "server.sif"
    image.write_bytes(b"abc")
    found = prepare(Container(image=str(image), runner=(str(program),)))
    assert found.digest == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert prepare(Container(image=str(tmp_path), runner=(str(program),))).digest == ""
    with pytest.raises(UserError, match=r"fetch it first with `apptainer pull NAME.sif docker://a/b`"):
        prepare(Container(image="docker://a/b", runner=(str(program),)))


def test_a_command_is_bounded_in_time_and_its_last_line_is_kept() -> None:
    variables = {"PATH": "/usr/bin:/bin"}
    assert run(["sh", "-c", "echo one; echo two"], variables, 10.0) == (0, "one\ntwo\n", "two")
    assert run(["sh", "-c", "echo out; echo why >&2; exit 3"], variables, 10.0) == (3, "out\n", "why")
    assert run(["sleep", "60"], variables, 0.1) == (None, "", "no answer within 0.1 s")
    assert run(["/nowhere"], variables, 1.0)[:2] == (None, "")
