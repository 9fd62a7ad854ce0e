"""The settings as a model: accepted values, refused values and their error messages."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from provision.core.errors import SettingsError
from provision.settings import HostSettings, Level, Settings, env_levels
from provision.settings.levels import merge
from provision.settings.validators import TTL_MAX_S, TTL_MIN_S, idle_seconds, ttl_seconds

KEY = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + bytes(32)).decode()


def level(**data: Any) -> Level:
    return Level("invoke.yaml", data)


def refused(*levels: Level) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        Settings.from_levels(levels)
    assert len(str(caught.value).splitlines()) == 3, str(caught.value)
    return caught.value


def test_empty_settings_are_the_mock_with_documented_defaults() -> None:
    settings = Settings.from_levels([])
    assert settings == Settings()
    assert (settings.cloud, settings.name, settings.gpu, settings.gpu_count, settings.disk_gb) == (
        "mock",
        "dev",
        "nvidia-l4",
        1,
        200,
    )
    assert (settings.image, settings.driver, settings.ttl_s) == ("cos-125-lts", "default", 8 * 3600)
    worker = settings.worker
    assert (worker.base, worker.python, worker.beam, worker.shm_size, worker.name) == (
        "beam",
        "3.11",
        "2.77.0",
        "1g",
        "worker",
    )
    assert (worker.privileged, worker.processes) == (False, None)
    assert (settings.mps.pipe_dir, settings.mps.log_dir, settings.mps.thread_percentage) == (
        "/run/mps/pipe",
        "/run/mps/log",
        None,
    )


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().name = "x"


def test_project_selects_compute_engine_unless_cloud_is_set() -> None:
    assert Settings.from_levels([level(project="my-project-1")]).cloud == "gce"
    assert Settings.from_levels([level(project="my-project-1", cloud="mock")]).cloud == "mock"
    assert refused(level(cloud="gce")).why == "Compute Engine needs a project that is billed"


def test_empty_section_keeps_the_defaults() -> None:
    assert (
        Settings.from_levels([level(worker=None, hosts=None, zones=None, gpu=None)]) == Settings()
    )


def test_gpu_none_means_no_gpus() -> None:
    settings = Settings.from_levels([level(gpu="none", disk_gb=20)])
    assert (settings.gpu, settings.gpu_count) == (None, 0)


def test_zones_and_capacity_wait_are_parsed() -> None:
    settings = Settings.from_levels(
        [
            level(
                zones=["us-east1-b", "europe-west4", "everywhere"],
                provisioning="flex-start",
                capacity_wait="1h30m",
            )
        ]
    )
    assert (settings.zones, settings.capacity_wait_s) == (
        ("us-east1-b", "europe-west4", "everywhere"),
        5400,
    )
    assert Settings().capacity_wait_s is None


# --- what is refused ------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"zone": "us-central1-a"}, "unknown key provision.zone", "did you mean provision.zones?"),
    (
        {"worker": {"imgae": "x"}},
        "unknown key provision.worker.imgae",
        "did you mean provision.worker.image?",
    ),
    ({"python": "3.12"}, "unknown key provision.python", "did you mean provision.worker.python?"),
    (
        {"hosts": {"ws": {"adress": "x"}}},
        "unknown key provision.hosts.ws.adress",
        "did you mean provision.hosts.ws.address?",
    ),
    (
        {"hosts": {"ws": {"user": "x"}}},
        "provision.hosts.ws.address is missing",
        "set provision.hosts.ws.address",
    ),
    ({"hosts": {"ws": None}}, "provision.hosts.ws is empty", "change or remove provision.hosts.ws"),
    ({"disk_gb": 20}, "provision.disk_gb is 20", "set provision.disk_gb to 50 or more"),
    (
        {"disk_gb": "200"},
        "provision.disk_gb is '200'",
        "write provision.disk_gb as digits, without quotes and without a unit",
    ),
    ({"disk_gb": 1.5}, "provision.disk_gb is 1.5", "change or remove provision.disk_gb"),
    ({"gpu_count": True}, "provision.gpu_count is True", "change or remove provision.gpu_count"),
    (
        {"zones": "us-central1-a"},
        "provision.zones is 'us-central1-a'",
        "write provision.zones as a list: ['us-central1-a']",
    ),
    ({"zones": []}, "provision.zones is []", "name at least one zone, such as us-central1-a"),
    (
        {"zones": ["us-central1-a", "x;y"]},
        "provision.zones[1] is 'x;y'",
        "change or remove provision.zones[1]",
    ),
    (
        {"zones": ["us-central"]},
        "provision.zones[0] is 'us-central'",
        "change or remove provision.zones[0]",
    ),
    (
        {"capacity_wait": "80s"},
        "provision.capacity_wait is '80s'",
        "change or remove provision.capacity_wait",
    ),
    (
        {"provisioning": "cheap"},
        "provision.provisioning is 'cheap'",
        "change or remove provision.provisioning",
    ),
    ({"worker": {"python": 3.1}}, "provision.worker.python is 3.1", "in quotes"),
    ({"driver": 535}, "provision.driver is 535", "in quotes"),
    ({"ttl": "5"}, "provision.ttl is '5'", "change or remove provision.ttl"),
    ({"idle_stop": "4m"}, "provision.idle_stop is '4m'", "change or remove provision.idle_stop"),
    (
        {"idle_delete": "soon"},
        "provision.idle_delete is 'soon'",
        "change or remove provision.idle_delete",
    ),
    ({"ttl": "121d"}, "provision.ttl is '121d'", "change or remove provision.ttl"),
    (
        {"hosts": {"ws": {"address": "x", "become": False}}},
        "provision.hosts.ws.become is False",
        '"none" in quotes',
    ),
    (
        {"hosts": {"ws": {"address": "-oProxyCommand=x"}}},
        "provision.hosts.ws.address is '-oProxyCommand=x'",
        "change",
    ),
    (
        {"hosts": {"a b": {"address": "x"}}},
        "'a b' is not a valid key of provision.hosts",
        "rename it",
    ),
    (
        {"hosts": {"ws": {"address": "x", "port": 70000}}},
        "provision.hosts.ws.port is 70000",
        "change",
    ),
    (
        {"hosts": {"ws": {"address": "x", "driver": "cos", "driver_dir": "/x"}}},
        "provision.hosts.ws.driver_dir is '/x'",
        "remove driver_dir",
    ),
    ({"mps": {"pipe_dir": "/" + "x" * 88}}, "provision.mps.pipe_dir is '/xxx", "change"),
    ({"mps": {"pipe_dir": "/"}}, "provision.mps.pipe_dir is '/'", "change"),
    ({"mps": {"pipe_dir": "/workspace/"}}, "provision.mps.pipe_dir is '/workspace/'", "change"),
    ({"mps": {"pipe_dir": "/x/../tmp"}}, "provision.mps.pipe_dir is '/x/../tmp'", "change"),
    ({"mps": {"pipe_dir": "relative"}}, "provision.mps.pipe_dir is 'relative'", "change"),
    ({"mps": {"gpu": "GPU-11112222"}}, "provision.mps.gpu is 'GPU-11112222'", "change"),
    (
        {"mps": {"gpu": "GPU-11112222-3333-4444-5555-66667777888"}},
        "provision.mps.gpu is 'GPU-11112222",
        "change",
    ),
    ({"mps": {"thread_percentage": 0}}, "provision.mps.thread_percentage is 0", "change"),
    (
        {"worker": {"volumes": ["/a:/data", "/b:/data/"]}},
        "provision.worker.volumes is ['/a:/data', '/b:/data/']",
        "a target of its own",
    ),
    (
        {"worker": {"volumes": ["/a:/usr/local/nvidia/lib64"]}},
        "provision.worker.volumes[0] is",
        "change",
    ),
    (
        {"worker": {"requirements": ["a\nb"]}},
        "provision.worker.requirements[0] is 'a\\nb'",
        "change",
    ),
    ({"worker": {"image": "Not An Image"}}, "provision.worker.image is 'Not An Image'", "change"),
    ({"recipes": ["my module:x"]}, "provision.recipes[0] is 'my module:x'", "change"),
    ({"cloud": "aws"}, "provision.cloud is 'aws'", "change"),
    ({"worker": 5}, "provision.worker is 5", "change"),
]


@pytest.mark.parametrize(("data", "what", "fix"), REFUSED, ids=[what for _, what, _ in REFUSED])
def test_invalid_value_is_refused_with_key_reason_and_remedy(
    data: dict[str, Any], what: str, fix: str
) -> None:
    error = refused(level(**data))
    assert error.where == "invoke.yaml"
    assert error.what.startswith(what)
    assert fix in error.fix
    assert error.exit_code == 2


def test_error_lists_what_is_allowed() -> None:
    assert refused(level(cloud="aws")).why == "allowed: gce, mock"
    assert "1 to 63 of a-z" in refused(level(name="Dev")).why
    assert (
        "at most 88 bytes (this one has 92)"
        in refused(level(mps={"pipe_dir": "/" + "ü" * 45 + "x"})).why
    )
    assert "a folder of its own, such as" in refused(level(mps={"pipe_dir": "/"})).why
    assert (
        "keys of provision.mps are pipe_dir, log_dir, thread_percentage"
        in refused(level(mps={"x": 1})).why
    )


def test_error_names_the_keys_of_all_problems() -> None:
    assert refused(level(name="X", ttl="5", zones=["y", "z"])).fix.endswith(
        "(then look at provision.zones[1], provision.name, provision.ttl too)"
    )


@pytest.mark.parametrize(
    "data",
    [
        {"worker": {"env": {"TOKEN": True}}},
        {"worker": {"env": {"A": ["hunter2"]}}},
        {"password": "hunter2"},
        {"worker": {"api_key": "hunter2"}},
    ],
)
def test_error_masks_confidential_values(data: dict[str, Any]) -> None:
    text = str(refused(level(**data)))
    assert "****" in text
    assert "hunter2" not in text
    assert "True" not in text


def test_environment_values_may_be_numbers() -> None:
    assert Settings.from_levels([level(worker={"env": {"OMP_NUM_THREADS": 4}})]).worker.env == {
        "OMP_NUM_THREADS": "4"
    }


def test_longest_pipe_folder_is_accepted() -> None:
    assert Settings.from_levels([level(mps={"pipe_dir": "/" + "x" * 87})]).mps.pipe_dir.endswith(
        "x"
    )


# --- where a value came from ----------------------------------------------------------------------


def test_error_names_the_source_of_the_effective_value() -> None:
    system = Level(
        "/etc/invoke.yaml",
        {"name": "a", "worker": {"beam": "x"}},
        {("worker",): 7, ("worker", "beam"): 8},
    )
    project = Level("invoke.yaml", {"name": "B"}, {("name",): 3})
    assert refused(system, project).where == "invoke.yaml, line 3"
    assert refused(project, system).where == "/etc/invoke.yaml, line 8"


def test_impossible_combination_names_the_source_of_the_key_to_change() -> None:
    levels = [
        Level("a.yaml", {"gpu": "nvidia-l4"}),
        Level("b.yaml", {"disk_gb": 30}, {("disk_gb",): 2}),
    ]
    assert refused(*levels).where == "b.yaml, line 2"


def test_error_in_a_list_item_names_the_line_of_the_list() -> None:
    assert refused(Level("a.yaml", {"zones": ["!"]}, {("zones",): 4})).where == "a.yaml, line 4"


def test_error_of_a_check_names_the_source_of_the_key() -> None:
    def check(settings: Settings) -> None:
        raise SettingsError("does not fit", where="machine_type", why="because", fix="another")

    with pytest.raises(SettingsError) as caught:
        Settings.from_levels(
            [Level("a.yaml", {"machine_type": "n1-standard-8"}, {("machine_type",): 9})],
            check=check,
        )
    assert (
        str(caught.value).splitlines()[0]
        == "a.yaml, line 9: provision.machine_type is 'n1-standard-8': does not fit"
    )


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["worker", "name", "hosts", "zones"]) | names, inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*Settings.model_fields]) | names, trees, max_size=4))
def test_any_file_content_gives_settings_or_one_settings_error(
    data: dict[str, Any],
) -> None:
    error = None
    try:
        Settings.from_levels([Level("f", data)])
    except SettingsError as found:
        error = found
    assert error is None or (
        error.where in {"f", "defaults"} and error.what and error.why and error.fix
    )


def test_mappings_are_merged_by_key_and_other_values_replaced() -> None:
    weak = Level(
        "weak", {"worker": {"env": {"A": "1", "B": "2"}, "apt": ["x", "y"]}, "name": "weak"}
    )
    strong = Level("strong", {"worker": {"env": {"B": "3"}, "apt": ["z"]}})
    assert merge([weak, strong]).data == {
        "worker": {"env": {"A": "1", "B": "3"}, "apt": ["z"]},
        "name": "weak",
    }
    assert weak.data["worker"] == {"env": {"A": "1", "B": "2"}, "apt": ["x", "y"]}, (
        "merging does not change a level"
    )


# --- text -----------------------------------------------------------------------------------------


def test_variable_sets_a_key_of_every_type() -> None:
    env = {
        "P_ZONES": "us-east1-b , us-east1-c,",
        "P_DISK_GB": "100",
        "P_WORKER_PRIVILEGED": "Yes",
        "P_WORKER_PROCESSES": "4",
        "P_MPS_THREAD_PERCENTAGE": "",
        "P_DATAFLOW_REGION": "us-east1",
        "PATH": "/bin",
    }
    settings = Settings.from_levels(env_levels(Settings, env, "P_"))
    assert settings.zones == ("us-east1-b", "us-east1-c")
    assert (settings.disk_gb, settings.worker.privileged, settings.worker.processes) == (
        100,
        True,
        4,
    )
    assert (settings.mps.thread_percentage, settings.dataflow.region) == (None, "us-east1")


def test_variable_overrides_a_file_and_is_named_in_the_error() -> None:
    levels = [level(disk_gb=60), *env_levels(Settings, {"P_DISK_GB": "30"}, "P_")]
    assert refused(*levels).where == "P_DISK_GB"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("8h", 28800),
        ("90m", 5400),
        ("1d12h", 129600),
        ("30s", 30),
        ("120d", 10368000),
        ("none", None),
        ("1h30s", 3630),
    ],
)
def test_ttl_is_parsed(text: str, seconds: int | None) -> None:
    assert ttl_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "8", "h", "29s", "121d", "8 h", "1h1d", "-8h", "8H", "0h", "\u0668h"]
)
def test_ttl_outside_the_bounds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="8h, 90m or 1d12h"):
        ttl_seconds(text)


@given(st.integers(TTL_MIN_S, TTL_MAX_S))
def test_every_ttl_within_the_bounds_is_accepted(seconds: int) -> None:
    assert ttl_seconds(f"{seconds}s") == seconds


# --- hosts ----------------------------------------------------------------------------------------


def test_host_settings_become_a_host_record() -> None:
    settings = Settings.from_levels(
        [
            level(
                hosts={
                    "ws": {"address": "local", "driver": "present", "host_key": KEY + " me@here"}
                }
            )
        ]
    )
    host = settings.hosts["ws"].host("ws")
    assert (host.name, host.address, host.port, host.become, host.driver) == (
        "ws",
        "local",
        None,
        "sudo",
        "present",
    )
    assert host.is_local
    assert host.host_key == KEY, "the comment is not part of the key"


NO_KEYS = [
    "AAAA",
    "ssh-ed25519",
    "ssh-ed25519 !!!",
    "ssh-ed25519 AAAA",
    KEY.replace("ssh-ed25519 ", "ssh-rsa "),
    KEY[:-4],
    KEY[:30] + KEY[34:],
    KEY + "AAAA",
    f"desk {KEY}",
    f"ssh-ed25519-cert-v01@openssh.com {KEY.split()[1]}",
]


@pytest.mark.parametrize("key", NO_KEYS)
def test_invalid_host_key_is_refused(key: str) -> None:
    """A truncated key would differ from the host's key and look like an attack (exit 4)."""
    with pytest.raises(SettingsError) as caught:
        Settings.from_levels([level(hosts={"desk": {"address": "x", "host_key": key}})])
    error = str(caught.value)
    assert caught.value.exit_code == 2
    assert "provision.hosts.desk.host_key" in error
    assert repr(key)[:40] in error
    assert "one public key line" in error or "a whole ssh-" in error


def generated(kind: str) -> str:
    if kind == "rsa":
        return (
            rsa.generate_private_key(65537, 2048)
            .public_key()
            .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            .decode()
        )
    curve = ec.SECP256R1() if kind == "nistp256" else ec.SECP521R1()
    return (
        ec.generate_private_key(curve)
        .public_key()
        .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        .decode()
    )


@pytest.mark.parametrize("kind", ["rsa", "nistp256", "nistp521"])
def test_host_key_of_every_type_is_accepted(kind: str) -> None:
    line = generated(kind)
    assert HostSettings(address="x", host_key=f"{line} root@desk").host_key == line
    with pytest.raises(ValidationError, match="truncated or garbled"):
        HostSettings(address="x", host_key=line[:-8])


@pytest.mark.parametrize(
    ("written", "value"), [(True, "on"), (False, "off"), ("auto", "auto"), ("on", "on")]
)
def test_unquoted_on_and_off_are_accepted(written: object, value: str) -> None:
    assert Settings.model_validate({"os_login": written}).os_login == value
    with pytest.raises(ValueError, match="os_login"):
        Settings.model_validate({"os_login": "maybe"})


def test_idle_time_is_parsed() -> None:
    assert [idle_seconds(text) for text in ("none", "5m", "45m", "7d", "1d12h")] == [
        None,
        300,
        2700,
        604_800,
        129_600,
    ]
    settings = Settings.model_validate({"idle_stop": "45m", "idle_delete": "7d"})
    assert (settings.idle_stop_s, settings.idle_delete_s) == (2700, 604_800)
    assert (Settings().idle_stop_s, Settings().idle_delete_s) == (None, None)
