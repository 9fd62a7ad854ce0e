"""Every script file parses in three shells and passes shellcheck; no module holds long shell."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.core.shell import shell_text
from tests.shells.shells import Shell
from tests.unit.shelltexts import shellchecked_as_it_stands, unparsed

PACKAGE = Path(__file__).parents[2] / "provision"
FILES = sorted(PACKAGE.rglob("*.sh"))
INLINE_LINES = 8
"""A longer script is a file."""

_FIRST_LINE = re.compile(r"# shellcheck shell=sh( disable=SC\d+(,SC\d+)*)?|#!/bin/sh")
"""A program that a host keeps as a file begins with `#!/bin/sh`."""
_REQUIRED_INPUT = re.compile(r': ("\$\{\w+:?\?[^"]*\}"\s*)+(#.*)?')
_POSITIONAL_INPUT = re.compile(r"(\w+=\$(\d|\{\d+[-:?][^}]*\})\s*;?\s*)+(#.*)?")
_FIXED = re.compile(r"R=\$\{PROVISION_MOCK_ROOT-\}|export .*|set -\w+|shift( \d+)?|LC_ALL=C")
"""Lines that may stand among the inputs."""
_SHELL = re.compile(r"\$[\w{(]|\bthen\b|; do\b|2>|\bprintf '")


def header_problem(text: str) -> str:
    """What the first lines of a script file lack; empty when nothing."""
    lines = text.splitlines()
    if not lines or not _FIRST_LINE.fullmatch(lines[0]):
        return "the first line is neither `# shellcheck shell=sh` nor `#!/bin/sh`"
    comments = []
    for line in lines[1:]:
        if not line.startswith("#"):
            break
        comments.append(line.lstrip("# "))
    purpose = [comment for comment in comments if not comment.startswith("shellcheck ")]
    if not purpose:
        return "no comment says what the file does"
    if "SC2154" in lines[0] and not re.search(r"\breads?\b", " ".join(purpose), re.IGNORECASE):
        return "no comment names the variables that its functions read"
    return input_problem([line for line in lines if line.strip() and not line.startswith("#")])


def input_problem(code: list[str]) -> str:
    """An input that is named after the first lines of code; empty when there is none."""
    leading = True
    for line in code:
        named = _REQUIRED_INPUT.fullmatch(line) or _POSITIONAL_INPUT.fullmatch(line)
        if named and not leading:
            return f"an input is not named in the first lines: {line}"
        leading = leading and bool(named or _FIXED.fullmatch(line))
    return ""


def docstrings(tree: ast.Module) -> set[int]:
    """Identities of the constants that are docstrings."""
    bodies = [getattr(node, "body", None) for node in ast.walk(tree)]
    statements = [each for body in bodies if isinstance(body, list) for each in body]
    return {id(each.value) for each in statements if isinstance(each, ast.Expr)}


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def inline_shell(source: str) -> Iterator[int]:
    """Lines of string literals that hold shell which belongs into a file."""
    tree = ast.parse(source)
    skipped = docstrings(tree)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skipped
            and _SHELL.search(node.value)
            and not ("\n" in node.value and is_python(node.value))
        ):
            written = ast.get_source_segment(source, node) or ""
            escaped = "\\\\" in written and not written.startswith(("r", "R"))
            if escaped or len(node.value.strip("\n").split("\n")) > INLINE_LINES:
                yield node.lineno


# --- the files ------------------------------------------------------------------------------------


def test_every_shell_parses_every_file(shell: Shell) -> None:
    assert unparsed(shell, [str(file) for file in FILES]) == ""


def test_every_file_states_its_purpose_and_its_inputs_first() -> None:
    problems = {
        str(file.relative_to(PACKAGE)): problem
        for file in FILES
        if (problem := header_problem(file.read_text(encoding="utf-8")))
    }
    assert problems == {}


INDENTED_STRINGS = frozenset({"mps/status/gpu_holders.sh"})
"""Files with a string of several lines whose indentation does not matter: an awk program."""
NOT_SENT = ("testing/",)


def canonical_form(text: str) -> str:
    """The text as bash prints it back: without comments and indentation, with its strings."""
    code = f"f() {{\n{text}\n}}\ndeclare -f f"
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout


def test_text_that_is_sent_differs_from_its_file_only_in_comments_and_indentation() -> None:
    different = {
        name
        for file in FILES
        if not (name := file.relative_to(PACKAGE).as_posix()).startswith(NOT_SENT)
        and canonical_form(file.read_text(encoding="utf-8")) != canonical_form(shell_text(file))
    }
    assert different == INDENTED_STRINGS


@pytest.mark.lint
def test_shellcheck_accepts_every_file_as_it_stands() -> None:
    """SC2154 reports a variable that a file reads and does not name among its inputs."""
    assert shellchecked_as_it_stands([str(file) for file in FILES]) == ""


@pytest.mark.parametrize(
    "text",
    [
        '# shellcheck shell=sh\n# Says a word.\n: "${word:?}" "${file?}"\necho "$word"\n',
        "# shellcheck shell=sh\n# Says a word.\nword=$1 file=${2-}\n",
        "# shellcheck shell=sh\n# Says a word.\n\nR=${PROVISION_MOCK_ROOT-}\nset -u\nword=$1\n",
        "# shellcheck shell=sh disable=SC2154\n# Functions. They read $word.\nsay() {\n    a=$1\n}",
        "# shellcheck shell=sh\n# Prints the kernel.\n# shellcheck disable=SC2012\nuname -r\n",
    ],
)
def test_complete_header_is_accepted(text: str) -> None:
    assert header_problem(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#!/bin/bash\n# Says a word.\n",
        '# shellcheck shell=sh\n: "${word:?}"\n',
        '# shellcheck shell=sh\n# shellcheck disable=SC2012\n: "${word:?}"\n',
        '# shellcheck shell=sh\n# Says a word.\nset -x now\n: "${word:?}"\n',
        "# shellcheck shell=sh\n# Says a word.\necho\nword=$1\n",
        "# shellcheck shell=sh disable=SC2154\n# Functions.\nsay() { echo; }\n",
    ],
)
def test_incomplete_header_is_reported(text: str) -> None:
    assert header_problem(text) != ""


# --- the modules ----------------------------------------------------------------------------------


def test_no_module_holds_a_script_that_belongs_into_a_file() -> None:
    inline = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in inline_shell(path.read_text(encoding="utf-8"))
    }
    assert inline == set()


LONG = "\n".join(f'echo "${{a}}{number}"' for number in range(INLINE_LINES + 1))


@pytest.mark.parametrize(
    "source", [f"A = '''{LONG}'''", f"f(x, r'''{LONG}''')", r"""A = 'printf "%s\\n" "$x"'"""]
)
def test_long_or_escaped_inline_script_is_found(source: str) -> None:
    assert list(inline_shell(source)) != []


@pytest.mark.parametrize(
    "source",
    [
        """A = 'echo "$x"\\necho "$y"'""",
        r"""A = r'printf "%s\n" "$x"'""",
        r"A = '\\d+'",
        f"def f():\n    '''{LONG}'''",
    ],
)
def test_short_inline_script_is_accepted(source: str) -> None:
    assert list(inline_shell(source)) == []
