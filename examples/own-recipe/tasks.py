"""The tasks of provision, and one of this project's own."""

from invoke import Context, call, task

from provision.cli import namespace_for

namespace = namespace_for(__file__)


@task(pre=[namespace["dev.up"], call(namespace["dev.run"], file="train.py")])
def train(context: Context) -> None:
    """Bring the worker up and train on it."""


namespace.add_task(train)
