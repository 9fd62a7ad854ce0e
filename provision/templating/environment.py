"""The template engine: where templates are found, and how one is rendered.

A template is looked for in the user's own `templates/`, then inside the installed package, then in
the checkout. The shipped one stays reachable as `provision/NAME`, so a project's template may
extend the very template that it replaces.

No value reaches a file unquoted: a bare `{{ name }}` is refused unless `name` is an integer. It has
to pass through a filter that knows the file's language (`json`, `yaml`, `docker_env`, …), which
quotes the value or refuses it. `verbatim` is for text that already is in that language.
"""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from provision.core.errors import TemplateError
from provision.core.shell import PACKAGE
from provision.templating.filters import FILTERS, Quoted, Unquotable

if TYPE_CHECKING:
    import jinja2

SHIPPED = (PACKAGE / "_templates", PACKAGE.parent / "templates")
"""Inside a wheel, and beside the package in a checkout (an editable install copies nothing)."""


def render(name: str, values: Mapping[str, object], *, project_dir: Path | None) -> str:
    """The text of template `name` with `values`; `project_dir/templates` is searched first.

    Raises `TemplateError` with the template, the line, the reason and the variables that exist.
    """
    import jinja2

    environment = _environment(project_dir)
    try:
        return str(environment.get_template(name).render(values))
    except jinja2.TemplateNotFound as error:
        _raise_not_found(str(error.name or name), environment, rendered=name)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(
            "the template does not parse",
            where=f"{error.filename or error.name or name}:{error.lineno}",
            why=error.message or "",
            fix="see https://jinja.palletsprojects.com/templates/",
        ) from error
    except (
        jinja2.TemplateError,
        Unquotable,
        TypeError,
        ValueError,
        LookupError,
        ArithmeticError,
    ) as error:
        _raise_failed(error, name, values)


def _environment(project_dir: Path | None) -> jinja2.Environment:
    import jinja2

    class Environment(jinja2.Environment):
        # Macros, blocks and super() join pieces that were each checked: the result is quoted.
        concat = staticmethod(_join)

    shipped = jinja2.FileSystemLoader([str(folder) for folder in SHIPPED])
    loaders: list[jinja2.BaseLoader] = [shipped, jinja2.PrefixLoader({"provision": shipped})]
    if project_dir is not None:
        loaders.insert(0, jinja2.FileSystemLoader(str(project_dir / "templates")))
    environment = Environment(
        loader=jinja2.ChoiceLoader(loaders),
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        {name: _raising_for_undefined(quote) for name, quote in FILTERS.items()}
    )
    return environment


def _raising_for_undefined(quote: Callable[..., Quoted]) -> Callable[..., Quoted]:
    """`quote` that raises jinja2's error, with the variable's name, for an undefined value."""
    import jinja2

    def check(value: object, *options: object) -> Quoted:
        return quote(str(value) if isinstance(value, jinja2.Undefined) else value, *options)

    return check


def _join(pieces: Iterable[str]) -> Quoted:
    return Quoted("".join(pieces))


def _finalize(value: object) -> object:
    """`value` as it goes into the file. Raises `Unquotable` for text that no filter has quoted."""
    import jinja2

    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number or isinstance(value, (Quoted, jinja2.Undefined)):
        return value
    raise Unquotable(
        f"{value!r} would go into the file unquoted;"
        f" pass it through a filter: {', '.join(sorted(FILTERS))}"
    )


def _raise_not_found(missing: str, environment: jinja2.Environment, *, rendered: str) -> NoReturn:
    known = [name for name in environment.list_templates() if "/" not in name]
    close = difflib.get_close_matches(missing, known, n=1)
    raise TemplateError(
        f"there is no template {missing!r}",
        where="" if missing == rendered else rendered,
        why=f"known templates: {', '.join(known)}",
        fix=f"use {close[0]!r}" if close else f"create templates/{missing} in your project",
    ) from None


def _raise_failed(error: Exception, name: str, values: Mapping[str, object]) -> NoReturn:
    known = ", ".join(sorted(values)) or "none"
    missing = re.search(r"'([^']+)' is undefined", str(error))
    close = difflib.get_close_matches(missing[1], list(values), n=1) if missing else []
    raise TemplateError(
        f"variable {missing[1]!r} is missing" if missing else "the template failed",
        where=_template_line(error, name),
        why=str(error),
        fix=f"variables that exist: {known}" + (f"; did you mean {close[0]!r}?" if close else ""),
    ) from error


def _template_line(error: Exception, name: str) -> str:
    """FILE:LINE of the innermost template in the traceback; jinja2 maps its generated code back."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.endswith((".j2", name))
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else name
