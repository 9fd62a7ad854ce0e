"""Credentials for Google Cloud: Application Default Credentials, or none for the emulator."""

from __future__ import annotations

from typing import Any

from provision.core.errors import CloudAuthError

LOGIN_COMMAND = "gcloud auth application-default login"
CLOUD_PLATFORM_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def anonymous_credentials() -> Any:
    """Return credentials that authorize nothing."""
    from google.auth.credentials import AnonymousCredentials

    return AnonymousCredentials()  # type: ignore[no-untyped-call]


def default_credentials() -> Any:
    """Return the Application Default Credentials. Raises `CloudAuthError` when there are none."""
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    try:
        credentials, _project = google.auth.default(scopes=[CLOUD_PLATFORM_SCOPE])
    except GoogleAuthError as error:
        raise CloudAuthError(
            "no credentials for Google Cloud", why=str(error), fix=LOGIN_COMMAND
        ) from error
    return credentials


def email_of(credentials: Any) -> str:
    """Return the account that the credentials name, "" when they name none; makes no request."""
    account = getattr(credentials, "service_account_email", "")
    return str(account or getattr(credentials, "account", "") or "")


def describe_credentials() -> str:
    """Return the kind and account of the Application Default Credentials; makes no request.

    Raises `CloudAuthError` when there are none.
    """
    credentials = default_credentials()
    account = email_of(credentials)
    kind = type(credentials).__module__.rpartition(".")[2]
    return f"{kind} ({account})" if account else kind


def authorized_session(credentials: Any) -> Any:
    """Return an HTTP session (requests) that sends the credentials."""
    from google.auth.transport.requests import AuthorizedSession

    return AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
