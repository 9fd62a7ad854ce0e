"""The tasks of this project; `invoke --list` names them."""

from provision.cli import namespace_for

namespace = namespace_for(__file__)
