"""`Group`: the arrays of a Zarr group, by name."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    ItemsView,
    Iterator,
    Mapping,
    ValuesView,
)
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gpushard.arguments import instance, likely_names
from gpushard.array import Array, array_over, store_and_path
from gpushard.attributes import Attributes
from gpushard.errors import (
    GpushardError,
    MetadataError,
    NoSuchArrayError,
    NotFoundError,
    StoreError,
    UnsupportedError,
    naming,
    naming_group,
)
from gpushard.hierarchies.documents import (
    GroupContents,
    GroupDocument,
    cannot_list,
    directory_gone,
    is_deleted,
    join,
    no_such_array,
)
from gpushard.layout import ArrayLayout
from gpushard.metadata import (
    group_below,
    load_array,
    load_group,
    load_node,
    parse_array,
)
from gpushard.nearby import hinting
from gpushard.options import DEFAULT, Options
from gpushard.stores.base import Store

if TYPE_CHECKING:
    from gpushard.devices.base import Device
    from gpushard.stores.resolve import Target


def open_group(
    store: Target,
    path: str = "",
    *,
    device: str | Device = "auto",
    storage_options: Mapping[str, Any] | None = None,
    options: Options = DEFAULT,
    use_consolidated: bool | None = None,
) -> Group:
    """Open the group at `path` of a store: a mapping of names to arrays.

    Parameters
    ----------
    store, path, device, storage_options, options
        As for `open_array`.
    use_consolidated
        Whether the group's contents are those of its consolidated metadata, which may
        be older than what the store has. None takes them where there are some.

    Raises
    ------
    NotFoundError
        There is no group at `path`.
    OptionError
        `use_consolidated` is True, and the group has no consolidated metadata.
    MetadataError
        Its metadata is malformed.
    StoreError
        The store failed.

    Examples
    --------
    >>> group = gpushard.open_group("demo.zarr")
    >>> sorted(group)
    ['latitude', 'level', 'longitude', 'month', 'u', 'v', 'z']
    >>> group["u"].dimension_names
    ('month', 'level', 'latitude', 'longitude')
    """
    how = device, storage_options, options, naming_group
    opened, place = store_and_path(store, path, *how)
    if use_consolidated is not None:
        instance(use_consolidated, "use_consolidated", bool)
    with naming_group(opened, place), hinting(opened, place):
        document = load_group(opened, place, use_consolidated=use_consolidated)
    return Group(opened, document, device, options, use_consolidated is not False)


class Group(Mapping[str, Array]):
    """Arrays of a group by name; ``group["a/b"]`` reaches into groups below.

    Iterating gives the names of the arrays directly below the group, and of broken
    nodes there; `groups` has the names of the groups. An array is opened, or found with
    `in`, when it is asked for, as it is then; a broken node raises its error.

    Without consolidated metadata, the first question for names lists the store and
    reads the documents of all children; the names stay those until the group is opened
    again. `items` and `values` list each time, and open the arrays without asking
    again. Web servers cannot list; arrays and groups are
    then found by name only, and asking for names raises a `StoreError`.

    Parameters
    ----------
    store, document, device, options
        The group's store and contents, and the device and options of its arrays.
    reads_consolidated
        Whether consolidated metadata of groups below may be read.
    """

    def __init__(
        self,
        store: Store,
        document: GroupDocument,
        device: str | Device,
        options: Options,
        reads_consolidated: bool = True,
    ) -> None:
        self._store = store
        self._document = document
        self._contents = document.known
        self._device = device
        self._options = options
        self._reads_consolidated = reads_consolidated

    @property
    def store(self) -> Store:
        """The store that the group lies in."""
        return self._store

    @property
    def path(self) -> str:
        """Path of the group in its store; "" is the root."""
        return self._document.path

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The group's attributes, as a dictionary that refuses changes."""
        return Attributes(self._document.attributes)

    @property
    def is_consolidated(self) -> bool:
        """Whether the contents were read from consolidated metadata."""
        return self._document.is_consolidated

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups directly below.

        Raises
        ------
        StoreError
            The store cannot list, and the group's metadata is not consolidated.
        """
        return self._names("group")

    def group(self, name: str) -> Group:
        """The group `name` below this one.

        Raises
        ------
        NotFoundError, MetadataError, StoreError
            As for `open_group`.
        """
        place = self._join(name)
        with naming_group(self._store, place), hinting(self._store, place):
            self._refuse_broken(name)
            known = group_below(self._document, name)
            document = known or load_group(
                self._store,
                place,
                use_consolidated=None if self._reads_consolidated else False,
            )
        return self._over(document, self._device)

    def on_host(self) -> Group:
        """The same group, with its arrays on the host."""
        return self._over(self._document, "cpu")

    def as_listed(self) -> Group:
        """The same group with what lies below it now, whose arrays open at once.

        Their documents are not read again: it is for a use that follows.
        """
        if self._document.known is not None:
            return self
        with naming_group(self._store, self.path):
            contents = self._document.looked_up()
        return self._over(replace(self._document, contents=contents), self._device)

    def _over(self, document: GroupDocument, device: str | Device) -> Group:
        how = self._options, self._reads_consolidated
        return Group(self._store, document, device, *how)

    def items(self) -> ItemsView[str, Array]:
        """Names and arrays directly below the group, as they are now."""
        return ItemsView(self.as_listed())

    def values(self) -> ValuesView[Array]:
        """Arrays directly below the group, as they are now."""
        return ValuesView(self.as_listed())

    def __getitem__(self, name: str) -> Array:
        with naming(self._store, self._join(name)):
            layout = self._layout(name)
            return array_over(layout, self._store, self._device, self._options)

    def _layout(self, name: str) -> ArrayLayout:
        try:
            return self._found(name)
        except MetadataError as error:
            if not _is_of_a_group(error):
                raise
            what, hint = f"{name!r} is a group, not an array", f"group({name!r})"
            raise no_such_array(what, self.path, f"open it with {hint}") from error
        except NoSuchArrayError:
            raise
        except NotFoundError as error:
            names = [other for other in self._names_as_hint() if other != name]
            hint = f"it has {likely_names(name, names)}" if names else None
            what = f"the group has no array {name!r}"
            raise no_such_array(what, self.path, hint) from error

    def _found(self, name: str) -> ArrayLayout:
        self._refuse_broken(name)
        # Not of `_contents`: the array may be another one since they were listed.
        contents, place = self._document.known, self._join(name)
        known = None
        if contents is not None:
            known = contents.documents.get(name.strip("/"))
        if known is not None and known.get("node_type") == "array":
            if self._is_gone(name):
                raise directory_gone(name)
            return parse_array(known, place, self._options)
        return load_array(self._store, place, self._options)

    def _refuse_broken(self, name: str) -> None:
        broken = {} if self._contents is None else self._contents.broken
        if error := broken.get(name.strip("/")):
            raise copy(error)

    def _names_as_hint(self) -> Collection[str]:
        try:
            return self._looked_up().children
        except StoreError:
            return ()

    def _looked_up(self) -> GroupContents:
        """What lies below the group; listed once, and kept."""
        if self._contents is None:
            with naming_group(self._store, self.path):
                self._contents = self._document.looked_up()
        return self._contents

    def __iter__(self) -> Iterator[str]:
        return iter(self._names("array"))

    def __len__(self) -> int:
        return len(self._names("array"))

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        contents = self._contents
        if contents is not None and contents.children.get(name) == "group":
            return False
        # As of `[]`: what was listed may be gone, and the listing was maybe for a hint.
        known = self._document.known
        if known is None or not known.is_listed or "/" in name:
            try:
                return self._finds(name)
            except StoreError:
                if "/" in name:
                    raise
                # No key, or a document that cannot be read: the names tell.
                contents = self._looked_up()
                if not contents.is_listed:
                    raise
            return contents.children.get(name) == "array"
        return known.children.get(name) == "array" and not self._is_gone(name)

    def _is_gone(self, name: str) -> bool:
        return self.is_consolidated and is_deleted(self._store, self._join(name))

    def _finds(self, name: str) -> bool:
        """Whether there is an array, or a broken node."""
        try:
            with naming(self._store, self._join(name)):
                self._found(name)
        except NotFoundError:
            return False
        except MetadataError as error:
            return not _is_of_a_group(error)  # other broken nodes are among the names
        except UnsupportedError:
            return True
        return True

    def __repr__(self) -> str:
        url = f"{self._store.url}/{self.path}".rstrip("/")
        # A debugger's look is no reason to list a store over a network.
        if not self._store.costs.prefers_whole_objects:
            with suppress(StoreError):
                self._looked_up()
        if self._contents is None or not self._contents.is_listed:
            return f"<gpushard.Group {url} arrays and groups not listed>"
        return f"<gpushard.Group {url} arrays={list(self)} groups={list(self.groups)}>"

    def _names(self, kind: str) -> tuple[str, ...]:
        contents = self._looked_up()
        if not contents.is_listed:
            with naming_group(self._store, self.path):
                raise cannot_list(self.path)
        children = contents.children.items()
        return tuple(sorted(name for name, node_type in children if node_type == kind))

    def _join(self, name: str) -> str:
        return f"{self.path}/{instance(name, 'name', str)}".strip("/")


def _is_of_a_group(error: MetadataError) -> bool:
    """Whether an array could not be opened because it is a group: `group_instead`."""
    return error.json_path == "node_type" and error.hint is not None


def node_at(store: Store, path: str, options: Options) -> ArrayLayout | Group:
    """Layout of the array at `path`, or the group there, whose arrays use the host.

    Raises
    ------
    NotFoundError
        There is neither an array nor a group.
    MetadataError, UnsupportedError, StoreError
        It cannot be opened.
    """
    node = load_node(store, path, options)
    if isinstance(node, ArrayLayout):
        return node
    return Group(store, node, "cpu", options)


def walk(top: Group) -> Iterator[tuple[str, Group | GpushardError]]:
    """`top` and all groups below it, by relative path, each before its children.

    Each is as it is listed when its turn comes.

    A group below that cannot be opened or listed is represented by its error.

    Raises
    ------
    StoreError
        What lies below `top` cannot be listed.
    """
    # Without recursion: groups may be nested deeper than Python calls.
    waiting: list[tuple[str, Callable[[], Group]]] = [("", lambda: top)]
    while waiting:
        path, opened = waiting.pop()
        try:
            here = opened().as_listed()
            names = here.groups
        except GpushardError as error:
            if not path:
                raise
            yield path, error
            continue
        yield path, here
        waiting += [
            (join(path, name), partial(here.group, name)) for name in reversed(names)
        ]


def all_groups(top: Group) -> Iterator[tuple[str, Group]]:
    """As `walk`, but every group has to open.

    Raises
    ------
    GpushardError
        A group cannot be opened.
    """
    for path, found in walk(top):
        if isinstance(found, GpushardError):
            raise found
        yield path, found
