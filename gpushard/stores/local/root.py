"""The directory of a local store, and the rule for files that may be opened.

A file may be opened if it is a regular file and still lies below the directory after
all symbolic links are followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path

from gpushard.errors import NotFoundError, StoreError
from gpushard.stores.failures import failure, refuse_unsafe_key
from gpushard.stores.local.directories import (
    entries_in,
    is_below_itself,
    is_in_directory,
    listed_names,
    path_of,
)
from gpushard.stores.local.handles import FileHandle

# O_NONBLOCK, so that opening a fifo does not block; it changes nothing for files.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

# Entries of a directory that are listed together: few, because they are held.
_LISTED_AT_ONCE = 1000

_HINTS = {
    errno.EACCES: "check the permissions of the file and its directories",
    errno.EPERM: "check the permissions of the file and its directories",
    errno.EMFILE: "raise the limit of open files (ulimit -n) or lower file_handles",
    errno.ENFILE: "close other programs that hold many files open",
    errno.ELOOP: "remove the circle of symbolic links",
    errno.ESTALE: "the network file system lost the file; read again",
}


def absolute(path: str | Path) -> str:
    """Absolute form of a path, which stays right if the process changes directory.

    Raises
    ------
    NotFoundError
        The path is relative to a working directory that was deleted.
    """
    try:
        plain = os.path.abspath(path)
        # It drops "link/..", where the system goes to the directory above the target.
        if os.pardir not in Path(path).parts:
            return plain
        real = os.path.realpath(path)
        return plain if os.path.realpath(plain) == real else real
    except FileNotFoundError as error:
        raise NotFoundError(
            "the working directory was deleted, and the path is relative to it",
            got=repr(str(path)),
            hint="change to a directory that exists, or pass an absolute path",
        ) from error


class StoreRoot:
    """A directory whose files are objects; their keys are paths below it.

    Attributes
    ----------
    path
        Absolute path of the directory.
    prefix
        Text that turns a key into the path of its file.
    allows_links_outside
        Whether symbolic links that lead out of the directory are followed.
    was_there
        Whether the directory has been seen. If it is gone later, nothing says which
        objects there are.
    """

    def __init__(self, path: str | Path, *, allow_symlinks_outside: bool) -> None:
        self.path = absolute(path)
        self.prefix = self.path.rstrip("/") + "/"
        self._real_prefix = os.path.realpath(self.path).rstrip("/") + "/"
        self.allows_links_outside = allow_symlinks_outside
        self.was_there = os.path.isdir(self.path)

    @cached_property
    def url(self) -> str:
        """``file://`` URL of the directory."""
        return Path(self.path).as_uri()

    def open(self, key: str, close_others: Callable[[], None]) -> FileHandle | None:
        """Open the file at `key`; None if there is no file.

        Parameters
        ----------
        close_others
            Called before a second attempt if no more files can be open.

        Raises
        ------
        StoreError
            The key leads out of the directory or not to a regular file, or the file
            cannot be opened. Or a symbolic link leads to where there is nothing, or the
            directory is gone.
        """
        refuse_unsafe_key(key, self.url)
        try:
            handle = self._open_with_room(key, close_others)
        except FileNotFoundError:
            self._refuse_dangling(key)
            return None
        except NotADirectoryError:
            self._refuse_if_gone(key)  # a file may lie there now
            return None
        except OSError as error:
            raise self.failure(key, error) from error
        self._check(handle)
        self.was_there = True
        return handle

    def open_itself(self) -> FileHandle | None:
        """The directory, open; None if it is gone, or its path leads elsewhere now."""
        try:
            handle = self._open_file("")
        except OSError:
            return None
        real = path_of(handle.fd, self.path)
        return handle if real.rstrip("/") + "/" == self._real_prefix else None

    def names_below(self, prefix: str) -> list[str]:
        """Sorted names directly below the directory `prefix`; [] if there is none."""
        prefix = prefix.strip("/")
        if prefix:
            refuse_unsafe_key(prefix, self.url)
        refuse = partial(self._refuse_listing, prefix)
        with self._as_store_errors(prefix):
            return sorted(listed_names(self.prefix + prefix, refuse))
        return []

    def keys_below(self, prefix: str) -> Generator[list[str]]:
        """Keys of all that lies below the directory `prefix`, directories too.

        Raises `StoreError` where a directory cannot be listed, and at a link that leads
        nowhere, because there may have been a directory.
        """
        prefix = prefix.strip("/")
        if prefix:
            refuse_unsafe_key(prefix, self.url)
        waiting = [f"{prefix}/" if prefix else ""]
        while waiting:
            above = waiting.pop()
            entries = self._entries(above)
            while some := list(islice(entries, _LISTED_AT_ONCE)):
                keys = [above + name for name, _ in some]
                pairs = zip(keys, some, strict=True)
                waiting += [
                    f"{key}/" for key, (_, is_directory) in pairs if is_directory
                ]
                yield keys

    def _entries(self, above: str) -> Iterator[tuple[str, bool]]:
        """Names below `above`, which ends in a slash; whether each is a directory."""
        prefix = above.rstrip("/")
        refuse = partial(self._refuse_listing, prefix)
        with self._as_store_errors(prefix):
            for name, is_directory in entries_in(self.prefix + prefix, refuse):
                if is_directory is None:
                    raise self._dangling_link(above + name, above + name)
                yield name, is_directory

    @contextmanager
    def _as_store_errors(self, prefix: str) -> Generator[None]:
        """Make the system's errors of a listing ours; no directory has no names."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            self._refuse_if_gone(prefix)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise self.failure(prefix, error) from error

    def failure(self, key: str, error: OSError) -> StoreError:
        """Error for the file at `key`, with a hint what to do."""
        return failure(
            self.url,
            key,
            error.strerror or str(error),
            hint=_HINTS.get(error.errno or 0, "check the disk and the file system"),
        )

    def _open_file(self, key: str) -> FileHandle:
        fd = os.open(self.prefix + key, _OPEN_FLAGS)
        try:
            status = os.fstat(fd)
        except BaseException:
            os.close(fd)
            raise
        # Only the handle closes it now: an interrupt may come when it is made already,
        # and a number that is closed twice may be another thread's file.
        return FileHandle(fd, key, status)

    def _open_with_room(self, key: str, close_others: Callable[[], None]) -> FileHandle:
        """Open a file, at the second attempt if no more files can be open."""
        try:
            return self._open_file(key)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        # The system says so of a missing file, too: the second answer counts.
        close_others()
        return self._open_file(key)

    def _refuse_dangling(self, key: str) -> None:
        """Refuse a link to a file, or to a directory above it, that leads nowhere.

        What it led to may be on a disk that is not mounted, or (git-annex) not fetched.
        """
        path = self.prefix + key
        end = len(path)
        is_there = _look_at_links()
        while not is_there(path[:end]):
            end = path.rfind("/", 0, end)
            if end < len(self.prefix):
                self._refuse_if_gone(key)
                return
        self.was_there = True
        if end < len(path) and os.access(path[:end], os.F_OK):
            return
        if os.path.islink(path[:end]) and not os.path.exists(path[:end]):
            raise self._dangling_link(key, path[len(self.prefix) : end])

    def _dangling_link(self, key: str, link: str) -> StoreError:
        return failure(
            self.url,
            key,
            f"the symbolic link {link!r} leads nowhere",
            hint="mount or fetch what it leads to, or remove the link",
        )

    def _refuse_if_gone(self, key: str) -> None:
        """Refuse to call an object missing because the whole directory is."""
        if os.path.isdir(self.path):
            self.was_there = True
        elif self.was_there:
            raise failure(
                self.url,
                key,
                "the store's directory is gone",
                hint="it was moved, deleted or unmounted: open the array where it is",
            )

    def _check(self, handle: FileHandle) -> None:
        """Refuse anything but a regular file below the directory."""
        if not stat.S_ISREG(handle.mode):
            raise failure(
                self.url,
                handle.key,
                "there is something else where a file should be",
                expected="a regular file",
                got="a directory" if stat.S_ISDIR(handle.mode) else "a special file",
                hint="remove it or restore the file",
            )
        if not self.allows_links_outside:
            path = path_of(handle.fd, self.prefix + handle.key)
            self.refuse_outside(handle.key, path)

    def _refuse_listing(self, prefix: str, real_path: str) -> None:
        """Refuse a directory outside, or one above itself, whose listing never ends."""
        is_linked = prefix and real_path != self._real_prefix + prefix
        if is_linked:
            self.refuse_outside(prefix, real_path)
        if is_linked and is_below_itself(self.prefix, prefix, real_path):
            raise OSError(errno.ELOOP, "symbolic links lead round in a circle")

    def refuse_outside(self, key: str, real_path: str) -> None:
        """Refuse a path without symbolic links outside, unless links may leave it."""
        if self.allows_links_outside or is_in_directory(real_path, self._real_prefix):
            return
        self._refuse_if_gone(key)  # it may have been moved since the file was opened
        raise StoreError(
            "a symbolic link leads out of the store's root",
            shard_key=key,
            store_url=self.url,
            got=real_path,
            hint="open the store at the place that the link leads to, or copy the file"
            " into it; or, if you trust the link, open it with LocalStore(root,"
            " allow_symlinks_outside=True)",
        )


@cache
def _look_at_links() -> Callable[[str], bool]:
    """Function that says whether anything is at a path, if only a link to nowhere."""
    # Files are missing by the thousand, and this raises no errors. But it is always
    # False if the system cannot look at a link itself: older macOS, musl before Linux
    # 5.8, sandboxes that do not know faccessat2(2).
    look = partial(os.access, mode=os.F_OK, follow_symlinks=False)
    can_look = os.access in os.supports_follow_symlinks and look("/")
    return look if can_look else os.path.lexists
