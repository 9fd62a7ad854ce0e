"""What became of a request: its zone operation, looked up by requestId."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.cloud.api.client import ComputeClient
from provision.cloud.api.google_library import as_json
from provision.cloud.api.protocol import OperationResult
from provision.cloud.refusal import CloudRefused

_PAGE = 500


def operation_result(client: ComputeClient, zone: str, request_id: str) -> OperationResult | None:
    """Wait for the operation that `request_id` began in `zone`; None when it began none.

    An operation carries its requestId as `clientOperationId` (Compute Engine API,
    zoneOperations). Its refusal is in the result. Raises `CloudError` when the request fails.
    """
    what, where = "the operation could not be looked up", f"{zone}/{request_id}"
    for operation in _operations_of(client, zone, request_id, what, where):
        try:
            client.wait_for_operation(operation, zone, what, where)
        except CloudRefused as error:
            if not error.refusal.final:
                raise
            return OperationResult(error)
        return OperationResult()
    return None


def _operations_of(
    client: ComputeClient, zone: str, request_id: str, what: str, where: str
) -> Sequence[Mapping[str, Any]]:
    """Return the operations of the requestId; read them all if the API refuses the filter (400)."""
    fields = {"zone": zone, "max_results": _PAGE}
    service, method = "ZoneOperationsClient", "list"
    try:
        chosen = {**fields, "filter": f'clientOperationId="{request_id}"'}
        operations = client.pages(service, method, what, where, as_json, **chosen)
    except CloudRefused as error:
        if error.refusal.http_status != 400:
            raise
        operations = client.pages(service, method, what, where, as_json, **fields)
    return [
        operation for operation in operations if operation.get("clientOperationId") == request_id
    ]
