"""The end of a boot: a recipe waits for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provision.core.model import Facts, Scalar, State
from provision.core.resource import Resource
from provision.core.shell import Script, fields, script

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class BootEnded(Resource):
    """The boot unit is not being started, so that a recipe and the unit never run the same steps.

    The result of the unit does not matter: the recipe finds and does what it left undone.
    """

    unit: str
    timeout_s: float = 1800.0
    checks_user_data: bool = False
    """Check also that the instance's user-data starts the unit at a boot.

    Container-Optimized OS loses /etc at a reboot, so only user-data can; a VM that provision did
    not create may lack it.
    """

    def probe(self) -> Script:
        """Print the state of the unit and of its job, and what the metadata server answers."""
        check = "yes" if self.checks_user_data else ""
        return script(
            HERE / "probe.sh", uses=["core/os_release.sh"], unit=self.unit, check_user_data=check
        )

    def read(self, text: str) -> State | None:
        """`{"under_way"}`, and `{"in_user_data", "instance", "zone"}` where that was checked.

        A oneshot unit is `activating` while it runs; one that waits to be started has a job.
        """
        found = fields(text)
        state: dict[str, Scalar] = {
            "under_way": found.get("state", "").strip() == "activating"
            or found.get("job", "").strip().strip("0").isdigit()
        }
        if "in_user_data" in found:
            state |= {
                "in_user_data": found["in_user_data"].strip() == "yes",
                "instance": found.get("instance", "").strip(),
                "zone": found.get("zone", "").strip().rpartition("/")[2],
            }
        return state

    def remark(self, actual: State | None) -> str:
        """That a reboot would undo everything, and the command that adds the user-data."""
        if actual is None or actual.get("in_user_data", True):
            return ""
        name, zone = actual.get("instance") or "INSTANCE", actual.get("zone") or "ZONE"
        return (
            "nothing brings this host back after a reboot: invoke vm.user-data > user-data"
            f" && gcloud compute instances add-metadata {name} --zone {zone}"
            " --metadata-from-file user-data=user-data"
        )

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"under_way": False}`."""
        return {"under_way": False}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Wait, and print the unit's latest log line now and then."""
        return script(HERE / "wait.sh", unit=self.unit)
