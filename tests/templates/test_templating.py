"""Rendering: where templates are found, how mistakes are reported, no unquoted value."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from provision import templating
from provision.core.errors import EXIT_USAGE, TemplateError
from provision.templating import environment, render

Project = Callable[..., Path]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Make a project folder with templates of these texts; `__` in a name is a dot."""

    def make(**templates: str) -> Path:
        (tmp_path / "templates").mkdir(exist_ok=True)
        for name, text in templates.items():
            (tmp_path / "templates" / name.replace("__", ".")).write_text(text, encoding="utf-8")
        return tmp_path

    return make


# --- where templates are found --------------------------------------------------------------------


def test_project_template_replaces_the_shipped_one(project: Project) -> None:
    folder = project(ssh_config__j2="mine\n")
    values = {"hosts": [], "known_hosts": "/k", "control_dir": "/c", "share": True}
    assert render("ssh_config.j2", values, project_dir=folder) == "mine\n"
    assert render("ssh_config.j2", values, project_dir=None) != "mine\n"


def test_project_without_templates_gets_the_shipped_ones(tmp_path: Path) -> None:
    assert render(
        "provision-boot.service.j2", {"timeout_s": 7}, project_dir=tmp_path
    ) == templating.boot_unit(timeout_s=7)


def test_project_template_may_extend_the_one_it_replaces(project: Project) -> None:
    folder = project(
        Dockerfile__beam__j2='{% extends "provision/Dockerfile.beam.j2" %}'
        "{% block system %}{{ super() }}RUN mine\n{% endblock %}",
    )
    from provision.image.dockerfile import ImageSpec, dockerfile

    text = dockerfile(ImageSpec(apt=("git",)), project_dir=folder)
    assert "RUN mine\n" in text
    assert "        git \\\n" in text, "super() brings the shipped block"
    assert text.rstrip().endswith('ENTRYPOINT ["/opt/apache/beam/boot"]')


def test_project_part_is_not_included_by_shipped_templates(project: Project) -> None:
    from provision.image.dockerfile import ImageSpec, dockerfile

    folder = project(_dockerfile__j2="broken {{")
    assert dockerfile(ImageSpec(), project_dir=folder) == dockerfile(ImageSpec())


def test_templates_of_the_wheel_come_before_those_of_the_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("wheel", "checkout"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "both.j2").write_text(name)
    (tmp_path / "checkout" / "one.j2").write_text("checkout only")
    monkeypatch.setattr(environment, "SHIPPED", (tmp_path / "wheel", tmp_path / "checkout"))
    assert render("both.j2", {}, project_dir=None) == "wheel"
    assert render("one.j2", {}, project_dir=None) == "checkout only"


def test_last_newline_is_kept(project: Project) -> None:
    assert render("a.j2", {}, project_dir=project(a__j2="x\n")) == "x\n"
    assert type(render("a.j2", {}, project_dir=project(a__j2="x\n"))) is str


# --- what a mistake is called ---------------------------------------------------------------------


def failure(folder: Path, **values: object) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        render("a.j2", values, project_dir=folder)
    assert caught.value.exit_code == EXIT_USAGE
    return caught.value


def test_missing_variable_is_reported_with_its_line_and_alternatives(project: Project) -> None:
    error = failure(project(a__j2="one\ntwo\n{{ imagee | json }}\n"), image="x", python="3.11")
    assert error.what == "variable 'imagee' is missing"
    assert error.where.endswith("templates/a.j2:3")
    assert error.fix == "variables that exist: image, python; did you mean 'image'?"


def test_missing_variable_in_condition_or_loop_is_reported(project: Project) -> None:
    assert "'nope' is missing" in failure(project(a__j2="{% if nope %}x{% endif %}")).what
    assert "'nope' is missing" in failure(project(a__j2="{% for x in nope %}x{% endfor %}")).what


def test_missing_variable_inside_a_list_is_reported(project: Project) -> None:
    assert failure(project(a__j2="{{ [1, nope] | json }}")).what == "variable 'nope' is missing"


def test_default_filter_replaces_a_missing_variable(project: Project) -> None:
    assert (
        render("a.j2", {}, project_dir=project(a__j2="{{ nope | default('x') | json }}")) == '"x"'
    )


def test_missing_attribute_is_reported(project: Project) -> None:
    error = failure(project(a__j2="\n{{ host.adress | json }}"), host={"address": 1})
    assert "adress" in error.why
    assert error.where.endswith("a.j2:2")


def test_error_in_included_template_has_its_line(project: Project) -> None:
    error = failure(project(a__j2='\n\n{% include "b.j2" %}', b__j2="1\n{{ gone | json }}"))
    assert error.where.endswith("b.j2:2")


def test_syntax_error_is_reported_with_file_and_line(project: Project) -> None:
    error = failure(project(a__j2="fine\n{% if x %}\n"), x=1)
    assert error.what == "the template does not parse"
    assert error.where.endswith("a.j2:2")


def test_unknown_template_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(TemplateError) as caught:
        render("Dockerfile.bean.j2", {}, project_dir=tmp_path)
    assert caught.value.fix == "use 'Dockerfile.beam.j2'"
    assert "Dockerfile.cuda.j2" in caught.value.why


def test_unknown_include_is_reported_with_the_including_template(project: Project) -> None:
    error = failure(project(a__j2='{% include "zzzz" %}'))
    assert error.what == "there is no template 'zzzz'"
    assert error.where == "a.j2"


def test_type_error_in_a_template_is_a_template_error(project: Project) -> None:
    error = failure(project(a__j2="\n{{ (1 + text) | json }}"), text="x")
    assert error.where.endswith("a.j2:2")
    assert "unsupported operand" in error.why


# --- nothing unquoted -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "{{ name }}",
        "{{ name ~ 'x' }}",
        "{{ name | json ~ name }}",
        "{{ name | upper }}",
        "{{ [name] | join(' ') }}",
        "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(name) }}",
        "{% set x = name %}{{ x }}",
        "{{ true }}",
        "{{ none }}",
        "{{ {'a': name} }}",
    ],
)
def test_unquoted_value_is_refused(project: Project, text: str) -> None:
    error = failure(project(a__j2=f"\n{text}"), name="a\nRUN evil")
    assert "unquoted" in error.why
    assert error.where.endswith("a.j2:2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ name | json }}", '"a b"'),
        ("{{ 5 }}", "5"),
        ("{% macro m(x) %}[{{ x | json }}]{% endmacro %}{{ m(name) }}", '["a b"]'),
        ("{% set x %}<{{ name | json }}>{% endset %}{{ x }}", '<"a b">'),
        ("{% call(x) outer() %}{{ x | json }}{% endcall %}", None),
        ("{% for x in [name, name] %}{{ x | json }};{% endfor %}", '"a b";"a b";'),
        ("{{ name | verbatim }}", "a b"),
    ],
)
def test_quoted_text_is_not_quoted_again(project: Project, text: str, expected: str | None) -> None:
    if expected is None:
        text = "{% macro outer() %}({{ caller('é<&>') }}){% endmacro %}" + text
        expected = '("é<&>")'
    assert render("a.j2", {"name": "a b"}, project_dir=project(a__j2=text)) == expected


def test_import_of_templating_does_not_import_jinja2() -> None:
    code = "import sys, provision.image.dockerfile; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
