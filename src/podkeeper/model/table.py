"""Tables, the format of `kubectl get` (meta.k8s.io/v1)."""

from typing import Final

from msgspec import field

from podkeeper.model.k8s import meta
from podkeeper.model.wire import Filled, Int32, JSONObject, Wire, empty_list, fill, null

API_VERSION: Final = "meta.k8s.io/v1"

Cell = str | int | float | bool | None

COMPLETED: Final = "Completed"
"""The only row condition: the object has finished."""


class TableColumnDefinition(Wire, frozen=True):
    """One column. kubectl shows those with priority 0, and the others with `-o wide`."""

    name: Filled[str] = field(default_factory=str)
    type: Filled[str] = field(default_factory=str)
    format: Filled[str] = field(default_factory=str)
    description: Filled[str] = field(default_factory=str)
    priority: Filled[Int32] = field(default_factory=int)

    def __post_init__(self) -> None:
        if None in (self.name, self.type, self.format, self.description, self.priority):
            fill(self)


class TableRowCondition(Wire, frozen=True):
    type: Filled[str] = field(default_factory=str)
    status: Filled[str] = field(default_factory=str)
    reason: str | None = None
    message: str | None = None

    def __post_init__(self) -> None:
        if None in (self.type, self.status):
            fill(self)


class TableRow(Wire, frozen=True):
    """One object: its cells, and the requested part of the object (`null` is written for none)."""

    cells: Filled[tuple[Cell, ...]] = field(default_factory=empty_list)
    conditions: tuple[TableRowCondition, ...] | None = None
    object: JSONObject | None = field(default_factory=null)

    def __post_init__(self) -> None:
        if self.cells is None:
            fill(self)


class Table(Wire, frozen=True):
    api_version: str | None = field(default=None, name="apiVersion")
    kind: str | None = None
    metadata: Filled[meta.ListMeta] = field(default_factory=meta.ListMeta)
    column_definitions: Filled[tuple[TableColumnDefinition, ...]] = field(
        default_factory=empty_list, name="columnDefinitions"
    )
    rows: Filled[tuple[TableRow, ...]] = field(default_factory=empty_list)

    def __post_init__(self) -> None:
        if None in (self.metadata, self.column_definitions, self.rows):
            fill(self)
