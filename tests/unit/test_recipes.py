"""The built-in recipes for every kind of host, the user's own recipes, and the boot script."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from provision.core.errors import ProvisionError, RecipeError, SettingsError
from provision.core.job import Section, section_text
from provision.core.model import Facts, Host, State
from provision.core.resource import Resource, compare, describe, waves
from provision.mps.daemon.compute_mode import ComputeMode
from provision.mps.daemon.daemon import MpsDaemon
from provision.recipes import WorkerImage, gpu_host, load_recipe, mps, user_resources, worker
from provision.recipes.host import registry_hosts
from provision.recipes.mps import no_mps_in_other_topology
from provision.recipes.worker import no_worker, worker_without_image
from provision.resources import (
    BootFragment,
    BootRunner,
    Container,
    Directory,
    Driver,
    File,
    NoContainer,
    Siblings,
)
from provision.resources.boot import BOOT_SCRIPT, fragment, fragment_text
from provision.settings import Settings
from tests.shells.shells import Scratch

UNIT = "[Service]\nType=oneshot\n"
COS = Facts(os_id="cos", build_id="1", cpus=8, gpus=("0000:00:04.0",))
DEBIAN = Facts(os_id="debian", cpus=8, driver_loaded="580")
HOSTS = (
    None,
    Host(name="w", address="local", driver="present", driver_dir="/opt/nvidia"),
    Host(name="c", address="c.invalid", driver="cos"),
)
BUILT = WorkerImage("provision/worker", b"context", "digest")
PULLED = WorkerImage("europe-docker.pkg.dev/p/r/worker:1")


def settings(**more: object) -> Settings:
    return Settings.model_validate(more)


def recipe(chosen: Settings, host: Host | None, image: WorkerImage) -> list[Resource]:
    return [
        *gpu_host(chosen, host=host, boot_unit=UNIT),
        *worker(chosen, image, host=host),
        *mps(chosen),
    ]


@pytest.mark.parametrize(
    ("gpu", "host", "image"), list(itertools.product(["nvidia-l4", "none"], HOSTS, [BUILT, PULLED]))
)
def test_dependencies_come_first_in_every_recipe(
    gpu: str, host: Host | None, image: WorkerImage
) -> None:
    resources = recipe(settings(gpu=gpu), host, image)
    assert [resource for wave in waves(resources) for resource in wave] == resources
    for resource, facts in itertools.product(resources, (COS, DEBIAN, Facts())):
        desired, body = resource.desired(facts), resource.ensure(facts)
        if body is not None:
            section_text(Section("k", body, 1.0))
        assert (
            desired is None
            or desired == {}
            or body is not None
            or resource.name in {"gpu", "nvidia-smi"}
        )
        assert resource.timeout_s > 0


def test_main_job_runs_in_order() -> None:
    names = [resource.name for resource in recipe(settings(), None, BUILT)]
    order = [
        "gpu",
        "docker",
        "boot-unit",
        "driver",
        "driver-mount",
        "registry-login",
        "nvidia-smi",
        "image",
        "container",
        "mps",
    ]
    assert [name for name in names if name in order] == order


def test_recipe_without_gpu_has_no_gpu_resources() -> None:
    resources = recipe(settings(gpu="none"), None, BUILT)
    assert not {"gpu", "driver", "driver-mount", "nvidia-smi"} & {
        resource.name for resource in resources
    }
    (box,) = [resource for resource in resources if isinstance(resource, Container)]
    assert not box.gpu


def test_present_driver_is_gathered_in_the_folder_of_the_settings() -> None:
    resources = {resource.name: resource for resource in recipe(settings(), HOSTS[1], BUILT)}
    driver, box = resources["driver"], resources["container"]
    assert isinstance(driver, Driver)
    assert isinstance(box, Container)
    assert (driver.source, driver.directory, box.driver_dir) == (
        "present",
        "/opt/nvidia",
        "/opt/nvidia",
    )


def test_container_acts_again_when_the_driver_changed() -> None:
    resources = {resource.name: resource for resource in recipe(settings(), None, BUILT)}
    assert {"driver", "driver-mount"} <= set(resources["container"].on_change_of)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, ("gcr.io",)),
        ({"registries": ["eu.gcr.io"]}, ("eu.gcr.io",)),
        ({"worker": {"image": "europe-docker.pkg.dev/p/r/x:1"}}, ("europe-docker.pkg.dev",)),
        (
            {
                "registries": ["gcr.io"],
                "worker": {"image": "gcr.io/p/x", "base_image": "us-docker.pkg.dev/p/r/b"},
            },
            ("gcr.io", "us-docker.pkg.dev"),
        ),
        ({"worker": {"image": "nvcr.io/nvidia/pytorch:25.01-py3"}}, ("gcr.io",)),
        ({"worker": {"image": "notgcr.io/x"}}, ("gcr.io",)),
        ({"worker": {"image": "worker"}}, ("gcr.io",)),
    ],
)
def test_registry_hosts_come_from_settings_and_images(
    more: dict[str, object], expected: tuple[str, ...]
) -> None:
    assert registry_hosts(settings(**more)) == expected


def test_absent_mps_and_worker_have_no_boot_steps() -> None:
    for resources in (mps(settings(), present=False), no_worker(settings())):
        (boot,) = [resource for resource in resources if isinstance(resource, BootFragment)]
        assert boot.desired(COS) is None
        assert not any(resource.at_boot for resource in resources)


def test_diff_of_a_fragment_hides_the_values_of_its_steps() -> None:
    resources = worker(settings(worker={"env": {"TOKEN": "it is mine"}}), BUILT)
    (boot,) = [resource for resource in resources if isinstance(resource, BootFragment)]
    assert "it is mine" in boot.text(COS)
    changes = compare(None, boot.desired(COS)) + compare(
        boot.read("mode=600\nsha256=0\n"), boot.desired(COS)
    )
    assert [change.key for change in changes] == ["mode", "sha256", "sha256"]
    assert "it is mine" not in "\n".join(line for change in changes for line in describe(change))


def test_mps_recipe_follows_the_settings() -> None:
    plan = {
        "thread_percentage": 12,
        "memory_limit": "4G",
        "cpus": "3,0-1",
        "gpu": 1,
        "exclusive": True,
    }
    mode, daemon, boot = mps(settings(mps=plan))
    assert isinstance(daemon, MpsDaemon)
    wanted = {
        "daemon": True,
        "thread_percentage": 12.0,
        "memory_limit": "4G",
        "cpus": "0-1,3",
        "gpu": "1",
    }
    assert daemon.desired(COS) == {**wanted, "server": "ACTIVE", "proof": "current"}
    assert mode.desired(COS) == {"mode": "Exclusive_Process", "changed_by_us": True, "others": ""}
    assert isinstance(boot, BootFragment)
    assert isinstance(mode, ComputeMode)
    assert [step.name for step in boot.steps] == ["compute-mode", "mps"]
    assert boot.undo == replace(mode, name="compute-mode-as-found", wanted="", at_boot=False)


def test_default_compute_mode_is_not_set_at_a_boot() -> None:
    mode, _, boot = mps(settings())
    assert mode.desired(COS) == {"changed_by_us": False, "usable": True}
    assert isinstance(boot, BootFragment)
    assert ([step.name for step in boot.steps], boot.undo) == (["mps"], None)


APART = {
    "mps": {"topology": "containers"},
    "worker": {"name": "box", "processes": 3, "image": PULLED.reference},
}


def test_workers_join_the_daemon_container_in_topology_containers() -> None:
    boxes = {resource.name: resource for resource in worker(settings(**APART), PULLED)}
    own, first, others = boxes["mps-container"], boxes["container"], boxes["siblings"]
    assert isinstance(own, Container)
    assert isinstance(first, Container)
    assert isinstance(others, Siblings)
    assert list(boxes) == ["image", "mps-container", "container", "siblings", "worker-steps"]
    assert (own.container, own.shares, own.joins) == ("box-mps", True, "")
    assert (first.container, first.joins) == ("box", "box-mps")
    assert dict(others.desired(COS) or {})["count"] == 2
    assert {"box-mps:/run/mps/pipe", "box-mps-log:/run/mps/log"} <= set(own.volumes)
    assert own.volumes == first.volumes
    daemon = mps(settings(**APART))[1]
    assert isinstance(daemon, MpsDaemon)
    assert (daemon.container, daemon.worker) == ("box-mps", "box")


def test_topology_container_removes_the_other_containers() -> None:
    boxes = {resource.name: resource for resource in worker(settings(), PULLED)}
    assert (boxes["siblings"].desired(COS), boxes["mps-container"].desired(COS)) == (None, None)
    assert not boxes["siblings"].at_boot
    gone = boxes["mps-container"]
    assert isinstance(gone, NoContainer)
    assert set(gone.volumes) == {"worker-mps", "worker-mps-log", "worker-mps-workspace"}


@pytest.mark.parametrize("topology", ["container", "containers"])
def test_mps_is_one_wave_after_the_containers(topology: str) -> None:
    chosen = settings(mps={"topology": topology})
    boxes = worker_without_image(chosen, PULLED, after=("mps-elsewhere",))
    whole = [
        no_mps_in_other_topology(chosen),
        *boxes,
        *mps(chosen, needs=tuple(box.name for box in boxes)),
    ]
    assert [resource.name for resource in waves(whole)[-1]][-2:] == ["mps", "mps-steps"]


# --- a boot ---------------------------------------------------------------------------------------


def at_boot() -> list[Resource]:
    return [
        Directory(name="it's a folder", path="/var/lib/a b", at_boot=True, mode="0750"),
        File(name="file", path="/etc/it's", content="$HOME `id`\n'\"\\\n", at_boot=True),
        File(name="kept", path="/var/lib/kept", content="x"),
        File(name="large", path="/var/lib/large", content="x" * 90_000, at_boot=True),
    ]


def is_desired(scratch: Scratch, resource: Resource, facts: Facts) -> bool:
    """True when the resource is as desired on the scratch host."""
    done = scratch.shell.run(
        "R=${PROVISION_MOCK_ROOT-}\n" + resource.probe().render(),
        PROVISION_MOCK_ROOT=str(scratch.root),
    )
    assert done.returncode == 0, done.stderr
    return compare(resource.read(done.stdout.decode()), resource.desired(facts)) == ()


def run_ensure(scratch: Scratch, resources: Sequence[Resource], facts: Facts) -> None:
    for resource in resources:
        body = resource.ensure(facts)
        assert body is not None
        script = "set -eu\nR=${PROVISION_MOCK_ROOT-}\n" + body.render()
        done = scratch.shell.run(
            "exec sh -s", stdin=script.encode(), PROVISION_MOCK_ROOT=str(scratch.root)
        )
        assert done.returncode == 0, done.stderr


def test_boot_script_restores_what_a_reboot_loses(scratch: Scratch) -> None:
    steps = at_boot()
    resources = [BootRunner(), fragment("steps", "10-a.sh", steps), *steps]
    run_ensure(scratch, resources, COS)
    assert all(is_desired(scratch, resource, COS) for resource in resources)
    lost = [step for step in steps if step.at_boot and step.name != "large"]
    for path in ("etc/it's", "var/lib/a b"):
        subprocess.run(["rm", "-r", str(scratch.root / path)], check=True)
    assert not any(is_desired(scratch, step, COS) for step in lost)
    boot = scratch.root / str(BOOT_SCRIPT).lstrip("/")
    done = scratch.shell.run('exec sh "$1"', str(boot), PROVISION_MOCK_ROOT=str(scratch.root))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == [
        "provision: it's a folder",
        "provision: file",
        "provision: ready",
    ]
    assert all(is_desired(scratch, resource, COS) for resource in resources)


def test_failed_step_ends_its_fragment_and_is_named(scratch: Scratch) -> None:
    (scratch.root / "etc/b").mkdir()
    steps = [
        File(name="bad", path="/etc/b", content="x", at_boot=True),
        File(name="next", path="/etc/c", content="x", at_boot=True),
    ]
    run_ensure(scratch, [BootRunner(), fragment("steps", "10-a.sh", steps)], COS)
    boot = scratch.root / str(BOOT_SCRIPT).lstrip("/")
    done = scratch.shell.run('exec sh "$1"', str(boot), PROVISION_MOCK_ROOT=str(scratch.root))
    assert done.returncode == 1
    assert b"provision: bad failed with status 1" in done.stderr
    assert not (scratch.root / "etc/c").exists()


@pytest.mark.parametrize("fails", ["/etc/b", "/etc/c", None])
def test_undo_runs_only_after_a_failed_step(scratch: Scratch, fails: str | None) -> None:
    steps = [
        File(name="first", path="/etc/b", content="x", at_boot=True),
        File(name="next", path="/etc/c", content="x", at_boot=True),
    ]
    run_ensure(
        scratch,
        [
            BootRunner(),
            fragment("steps", "10-a.sh", steps, undo=Directory(name="back", path="/etc/back's")),
        ],
        COS,
    )
    if fails is not None:
        (scratch.root / fails.lstrip("/")).mkdir()
    boot = scratch.root / str(BOOT_SCRIPT).lstrip("/")
    done = scratch.shell.run('exec sh "$1"', str(boot), PROVISION_MOCK_ROOT=str(scratch.root))
    assert done.returncode == (0 if fails is None else 1)
    assert (scratch.root / "etc/back's").is_dir() is (fails is not None)
    assert [
        line for line in done.stdout.decode().splitlines() if line.startswith("provision: ")
    ] == [
        "provision: first",
        *(["provision: next"] if fails != "/etc/b" else []),
        "provision: ready" if fails is None else "provision: back",
    ]


def test_boot_without_fragments_succeeds(scratch: Scratch) -> None:
    run_ensure(scratch, [BootRunner()], COS)
    boot = scratch.root / str(BOOT_SCRIPT).lstrip("/")
    done = scratch.shell.run('exec sh "$1"', str(boot), PROVISION_MOCK_ROOT=str(scratch.root))
    assert (done.returncode, done.stdout) == (0, b"provision: ready\n")


@pytest.mark.parametrize("facts", [COS, DEBIAN])
def test_boot_steps_are_those_that_a_run_can_do_on_the_host(facts: Facts) -> None:
    """The fragment has a step exactly where the engine could act on this host."""
    resources = gpu_host(settings(), boot_unit=UNIT)
    (boot,) = [resource for resource in resources if isinstance(resource, BootFragment)]
    text = fragment_text(boot.steps, facts)
    expected = [step.name for step in boot.steps if step.at_boot and step.ensure(facts) is not None]
    assert [line.split()[1] for line in text.splitlines() if line.startswith("step ")] == expected
    assert ("registry-login" in expected) is facts.is_cos
    assert ("driver-mount" in expected) is facts.is_cos
    assert "driver" in expected


class NothingDesired(Directory):
    """A user's resource that desires nothing on this host."""

    def desired(self, facts: Facts) -> State:
        return {}


def test_resource_without_desired_keys_has_no_boot_step() -> None:
    steps = [
        NothingDesired(name="a", path="/a", at_boot=True),
        Directory(name="b", path="/b", at_boot=True),
        Directory(name="c", path="/c"),
    ]
    assert [
        line.split()[1]
        for line in fragment_text(steps, COS).splitlines()
        if line.startswith("step ")
    ] == ["b"]


def test_long_timeout_is_written_without_exponent() -> None:
    assert fragment_text(
        [Directory(name="a", path="/a", at_boot=True, timeout_s=1_234_567.0)], COS
    ).startswith("step a 1234567 ")


def test_fragment_is_readable_by_root_alone() -> None:
    steps = [
        File(
            name="token",
            path="/etc/token",
            content="hunter2",
            mode="0600",
            secret=True,
            at_boot=True,
        )
    ]
    boot = fragment("steps", "10-a.sh", steps)
    assert dict(boot.desired(COS) or {})["mode"] == "0600"


# --- the user's own -------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("mine_"):
            del sys.modules[name]


def write(project: Path, name: str, text: str) -> str:
    (project / f"{name}.py").write_text(text)
    return f"{name}:extra"


GOOD = """
from provision.resources import Directory
def extra(settings):
    return [Directory(name="mine", path="/var/lib/" + settings.name)]
"""


def test_recipe_of_the_project_runs_last(project: Path) -> None:
    reference = write(project, "mine_good", GOOD)
    (found,) = user_resources(settings(recipes=[reference], name="dev"), project)
    assert found == Directory(name="mine", path="/var/lib/dev")
    names = [resource.name for resource in gpu_host(settings(), boot_unit=UNIT, extras=[found])]
    assert names[-1] == "mine"


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("mine_syntax", "def extra(settings)\n", SettingsError, r"mine_syntax\.py.*1"),
        ("mine_raises", "x = {}['a']\n", SettingsError, r"KeyError: 'a'.*mine_raises\.py:1"),
        ("mine_imports", "import nonsense_of_mine\n", SettingsError, "nonsense_of_mine"),
        (
            "mine_attribute",
            "import os\nos.nonsense\n",
            SettingsError,
            r"nonsense.*mine_attribute\.py:2",
        ),
        ("mine_without", "", SettingsError, "extra"),
        ("mine_value", "extra = 7\n", SettingsError, "int"),
        (
            "mine_none",
            "def extra(settings):\n    pass\n",
            RecipeError,
            "NoneType.*list of resources",
        ),
        ("mine_other", "def extra(settings):\n    return ['x']\n", RecipeError, "'x'"),
        (
            "mine_fails",
            "def extra(settings):\n    return 1 / 0\n",
            RecipeError,
            r"ZeroDivisionError.*mine_fails\.py:2",
        ),
        (
            "mine_refuses",
            "from provision import RemotePath\ndef extra(s):\n    return [RemotePath('x')]\n",
            ProvisionError,
            "absolute",
        ),
    ],
)
def test_broken_recipe_is_reported_with_its_line(
    project: Path, name: str, text: str, error: type[ProvisionError], message: str
) -> None:
    reference = write(project, name, text)
    with pytest.raises(error) as found:
        user_resources(settings(recipes=[reference]), project)
    assert re.search(message, str(found.value), re.DOTALL)
    if error is not ProvisionError:
        assert name in found.value.where


def test_missing_recipe_module_is_reported(project: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be imported"):
        load_recipe("mine_nothing:extra", project)
