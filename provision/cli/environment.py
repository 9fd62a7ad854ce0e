"""The variables that set settings: INVOKE_PROVISION_KEY, as Invoke would name them."""

from __future__ import annotations

from collections.abc import MutableMapping

ENV_PREFIX = "INVOKE_PROVISION_"
ENV_HIDDEN = "_" + ENV_PREFIX


def hide_environment(env: MutableMapping[str, str]) -> None:
    """Put variables of ours out of Invoke's sight, which would cast them by what the files happen to hold (a list: traceback).

    They stay in the environment, under a name with an underscore before it, for this process and its children.
    """
    for name in [name for name in env if name.startswith(ENV_PREFIX)]:
        env["_" + name] = env.pop(name)
