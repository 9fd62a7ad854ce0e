"""The parsers of the docker stand-in: Go templates, Dockerfiles, flags."""

from __future__ import annotations

from typing import Any

import pytest

from provision.testing.docker import command_line
from provision.testing.docker.dockerfile import expand, parse
from provision.testing.docker.go_template import TemplateError, render
from provision.testing.docker.store import DockerError

DATA: dict[str, Any] = {
    "Id": "sha256:12",
    "On": True,
    "Off": False,
    "None": None,
    "Env": ["A=1", "B=x y"],
    "Empty": [],
    "Config": {"Labels": {"a.b": "dotted", "n": "1"}},
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{.Id}}", "sha256:12"),
        ("{{ .Id }}|{{.On}}|{{.Off}}|{{.None}}", "sha256:12|true|false|<no value>"),
        ('{{index .Config.Labels "a.b"}}', "dotted"),
        ('{{index .Config.Labels "none"}}', ""),
        ("{{index .Env 1}}", "B=x y"),
        ("{{.Config.Labels.n}}", "1"),
        ("{{range .Env}}{{println .}}{{end}}", "A=1\nB=x y\n"),
        ("{{range .Empty}}x{{else}}none{{end}}", "none"),
        ("{{if .On}}yes{{else}}no{{end}}{{if .Off}}yes{{end}}", "yes"),
        ('{{if eq .Id "sha256:12"}}same{{end}}', "same"),
        ("{{with .Config}}{{.Labels.n}}{{end}}", "1"),
        ("{{json .Env}}{{len .Env}}", '["A=1","B=x y"]2'),
        ("{{.Env}} {{.Config.Labels}}", "[A=1 B=x y] map[a.b:dotted n:1]"),
        ('{{join .Env ","}}', "A=1,B=x y"),
        ('{{.Id | upper}} {{"literal"}}', "SHA256:12 literal"),
        ('{{(index .Config.Labels "n")}}', "1"),
        ("plain }} text", "plain }} text"),
    ],
)
def test_go_template_renders(template: str, text: str) -> None:
    assert render(template, DATA) == text


@pytest.mark.parametrize(
    "template",
    [
        "{{.Nope}}",
        "{{.Id.x}}",
        "{{",
        "{{nope .Id}}",
        "{{range .Env}}",
        "{{end}}",
        "{{}}",
        "{{index .Env 9}}",
    ],
)
def test_invalid_go_template_is_refused(template: str) -> None:
    with pytest.raises(TemplateError):
        render(template, DATA)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A ${A} ${B}", "1 1 "),
        ("${B:-d} ${A:-d} ${E:-d} ${E-d}", "d 1 d "),
        ("${A:+set} ${B:+set} ${E:+set} ${E+set}", "set   set"),
        ("/x${A:+:$A}", "/x:1"),
        ("${B:-${A}}", "1"),
        ("\\$A $", "$A $"),
    ],
)
def test_dockerfile_variables_are_expanded(text: str, value: str) -> None:
    assert expand(text, {"A": "1", "E": ""}) == value


def test_dockerfile_is_parsed_into_steps() -> None:
    steps = parse(
        "# c\nARG A=1\nfrom x AS y\nRUN a \\\n  # inside\n  && b\n\nCOPY --from=y --chown=1 /a /b\n"
    )
    assert [(step.line, step.name, step.rest) for step in steps] == [
        (2, "ARG", "A=1"),
        (3, "FROM", "x AS y"),
        (4, "RUN", "a && b"),
        (8, "COPY", "/a /b"),
    ]
    assert steps[3].flags == {"from": "y", "chown": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        "RUN x\n",
        "FROM x\nNOPE\n",
        "FROM x\nRUN <<EOF\nx\nEOF\n",
        "FROM x\nCOPY <<X /y\nX\n",
    ],
)
def test_invalid_dockerfile_is_refused(text: str) -> None:
    with pytest.raises(DockerError):
        parse(text)


def test_quoted_heredoc_in_run_is_accepted() -> None:
    assert parse("FROM x\nRUN echo '<<EOF'\n")[1].rest == "echo '<<EOF'"


def test_flags_are_parsed_in_all_spellings() -> None:
    options, rest = command_line.parse(
        "run",
        command_line.RUN,
        ["-dit", "-eA=1", "-e", "B", "--env=C=2", "--name", "x", "--rm=false", "image", "-x"],
        stop_at_word=True,
    )
    assert (options["detach"], options["interactive"], options["tty"], options["rm"]) == (
        True,
        True,
        True,
        False,
    )
    assert (options["env"], options["name"], rest) == (["A=1", "B", "C=2"], "x", ["image", "-x"])
    assert command_line.parse("rm", command_line.REMOVE, ["a", "-f", "--", "-b"])[1] == ["a", "-b"]
