"""What may become of one answer of a server on its way: the steps of `answers`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fuzz.answering import Asked, Reply, served

Step = Callable[["Answer", int, int], None]


@dataclass
class Answer:
    """An answer before it is sent.

    Attributes
    ----------
    asked, reply
        The request, and what an honest server answers.
    data
        The object; None where there is none.
    shows_damage
        Whether whoever reads the object notices other bytes in it.
    headers
        Those that tell the object's version.
    hides_version
        Whether the answer says something else of the version, set by a step.
    """

    asked: Asked
    reply: Reply
    data: bytes | None
    shows_damage: bool
    headers: list[tuple[str, str]]
    hides_version: bool = False

    def at(self, a: int) -> int:
        """A place in the body."""
        return a * len(self.reply.body) // 256

    def sized(self) -> None:
        """Let the headers tell the size that the body has."""
        self.reply.tell("Content-Length", str(len(self.reply.body)))


STATUSES = (
    *(200, 206, 404, 416, 412, 429, 503, 500, 502, 504, 304, 401, 403, 405, 410, 501),
    *(100, 101, 204, 203, 300, 400, 408, 505, 599, 999, 0),
)
_RETRY_AFTER = (
    *("", "0", "1", "2", "3600", "-1", "1.5", "9" * 400, "soon", "nan"),
    *("Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 +2359"),
    *("Thu, 01 Jan 1970 00:00:00 GMT", "Mon, 32 Foo 20 25:61:61 -0000", "1 2 3 4 5"),
)


def with_status(answer: Answer, a: int, b: int) -> None:
    """Another status, with a Retry-After; 0 resets the connection."""
    status = STATUSES[a % len(STATUSES)]
    answer.reply.is_reset = status == 0
    answer.reply.status = status
    answer.reply.tell("Retry-After", _RETRY_AFTER[b % len(_RETRY_AFTER)])


def alone_with_status(answer: Answer, a: int, b: int) -> None:
    """Another status, and nothing else but a page about it."""
    answer.reply.headers, answer.reply.body = [], b"<p>" * (b % 5)
    answer.sized()
    with_status(answer, a, b)


def _ranges(answer: Answer) -> list[str]:
    """What Content-Range may tell."""
    size = len(answer.data or b"")
    start, stop = answer.asked.wanted(size) or (0, size)
    spans = (
        *((start, stop - 1, size), (start + 1, stop, size), (start, stop, size)),
        *((start, stop - 2, size), (start, stop - 1, size + 1), (0, size - 1, size)),
        *((start, stop - 1, 2**63), (start, 2**64, 2**64), (stop, start, size)),
        *((start, stop - 1, stop - 1), (-1, stop, size), (start, stop - 1, "*")),
        *((start + 1, stop, size + 1), (start, stop - 1, 2**80)),
    )
    told = [f"bytes {first}-{last}/{total}" for first, last, total in spans]
    return [*told, f"bytes */{size}", "items 0-1/2", "bytes", "bytes 1-2-3/4/5", "é"]


def _lengths(answer: Answer) -> list[str]:
    n = len(answer.reply.body)
    numbers = (n - 1, n + 1, 0, n // 2, 2 * n, 2**31, 2**40, 2**63, 2**64, -1)
    return [*map(str, numbers), f"{n}, {n}", f"+{n}", "x", f"{n}.0", f"0x{n:x}"]


_TAGS = ("", '"0"', '"1"', 'W/"0"', 'W/"1"', "x", '"', "*", '"\\"', "é" * 9, "W/")
_DATES = (
    *("", "Mon, 01 Jan 2024 00:00:00 GMT", "Mon, 01 Jan 2024 00:00:01 GMT", "now"),
    *("Thu, 01 Jan 1970 00:00:00 GMT", "Sun Nov  6 08:49:37 1994", "0", "-1"),
    *("Monday, 01-Jan-24 00:00:00 GMT", "Fri, 31 Dec 99999 23:59:59 GMT"),
)
_ENCODINGS = ("", "identity", "gzip", "br", "gzip, br", "IDENTITY", "é")
_TRANSFERS = ("", "chunked", "identity", "gzip, chunked", "chunked, chunked", "x")
_HEADERS: dict[str, Callable[[Answer], list[str]]] = {
    "Content-Range": _ranges,
    "Content-Length": _lengths,
    "ETag": lambda _: [*_TAGS],
    "Last-Modified": lambda _: [*_DATES],
    "Content-Encoding": lambda _: [*_ENCODINGS],
    "Transfer-Encoding": lambda _: [*_TRANSFERS],
    "Retry-After": lambda _: [*_RETRY_AFTER],
    "Connection": lambda _: ["keep-alive", "Upgrade", "x" * 9000],
    "Content-Type": lambda _: ["text/html", "multipart/byteranges; boundary=x"],
    "Accept-Ranges": lambda _: ["none", "bytes"],
}
_VERSIONS = ("ETag", "Last-Modified")


def with_header(answer: Answer, a: int, b: int) -> None:
    """A header with another value, or a second one, or none."""
    name = [*_HEADERS][a % len(_HEADERS)]
    values = ["", *_HEADERS[name](answer)]
    answer.hides_version |= name in _VERSIONS
    if b & 128 and answer.reply.told(name) is not None:
        answer.reply.headers.append((name, values[b % len(values)]))
    else:
        answer.reply.tell(name, values[b % len(values)])


def cut(answer: Answer, a: int, b: int) -> None:
    """The body ends too early, as it told or not."""
    answer.reply.body = answer.reply.body[: answer.at(a)]
    if b & 1:
        answer.sized()


def lengthened(answer: Answer, a: int, b: int) -> None:
    """The body goes on, as it told or not."""
    answer.reply.body += bytes([b]) * (a + 1)
    if b & 1:
        answer.sized()


def shifted(answer: Answer, a: int, b: int) -> None:
    """Another range, told so; or not, where that can be seen."""
    size = len(answer.data or b"")
    wanted = answer.asked.wanted(size)
    if wanted is None and not answer.shows_damage:
        return
    start, stop = wanted or (0, size)
    first = max(0, start + a % 16 - 8)
    last = max(first + 1, min(size, stop + b % 16 - 8))
    if not answer.data or last > size:
        return
    answer.reply.body = answer.data[first:last]
    if not (b & 128 and answer.shows_damage):
        answer.reply.tell("Content-Range", f"bytes {first}-{last - 1}/{size}")
    answer.sized()


def garbled(answer: Answer, a: int, b: int) -> None:
    """Another byte in the body, where that can be seen."""
    body = bytearray(answer.reply.body)
    if answer.shows_damage and body:
        body[answer.at(a)] ^= b or 1
    answer.reply.body = bytes(body)


def paged(answer: Answer, a: int, b: int) -> None:
    """A page instead of the object, of another size than that."""
    page = (b"<html>%d" % b).ljust(8 * a, b"x")
    if len(page) == len(answer.data or b""):
        page += b"x"
    answer.reply = Reply(200, [("Content-Type", "text/html")], page)
    answer.sized()


def whole(answer: Answer, a: int, b: int) -> None:
    """All of the object, whatever range was asked for."""
    if answer.data is not None:
        everything = answer.asked._replace(headers={})
        answer.reply = served(everything, answer.data, answer.headers)
        answer.reply.status = 206 if a & 1 else 200


def chunked(answer: Answer, a: int, b: int) -> None:
    """The body in chunks, whole or not."""
    body, n = answer.reply.body, a + 1
    pieces = [body[i : i + n] for i in range(0, len(body), n)]
    lines = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    ends = (b"0\r\n\r\n", b"", b"0\r\n", b"0\r\nX: y\r\n\r\n", b"ffffffffffffffff0\r\n")
    if b & 16 and lines:
        lines[-1] = lines[-1][: -1 - a % 4]
    if b & 32:
        lines = [line.replace(b"\r\n", b";x=y\r\n", 1) for line in lines]
    if b & 64:
        lines.insert(0, (b"-1\r\n", b"g\r\n", b"\r\n")[a % 3])
    answer.reply.body = b"".join([*lines, ends[b % 16 % len(ends)]])
    answer.reply.tell("Transfer-Encoding", "chunked")
    if not b & 128:
        answer.reply.tell("Content-Length", "")


def redirected(answer: Answer, a: int, b: int) -> None:
    """Sent elsewhere; nowhere beyond this machine."""
    key = answer.asked.key
    nowhere = "127.0.0.1:1"
    places = (
        *(f"/elsewhere/{key}", f"/{key}", key, f"../{key}", "?x=y", "#x", ""),
        *(f"http://{nowhere}/{key}", f"//{nowhere}/", f"ftp://{nowhere}/x"),
        *("file:///dev/null", "http://[::", "http:///", "x" * 9000, "é", "data:,x"),
    )
    status = (301, 302, 303, 307, 308, 300, 304)[b % 7]
    answer.reply = Reply(status, [("Location", places[a % len(places)])])
    answer.sized()


def damaged_head(answer: Answer, a: int, b: int) -> None:
    """A bit or a byte of the head is another."""
    head = bytearray(answer.reply.head())
    at = (a + 256 * (b >> 7)) % len(head)
    head[at] = (head[at] ^ 1 << b % 8) if b & 64 else b % 128
    body = b"" if answer.asked.method == "HEAD" else answer.reply.body
    answer.hides_version = True
    answer.reply.raw = bytes(head) + body


def garbage(answer: Answer, a: int, b: int) -> None:
    """No answer that HTTP knows, or much ahead of it."""
    honest = answer.reply.sent(answer.asked.method)
    found = (
        *(b"", b"\0" * b, b"HTTP/1.1 200", b"HTTP/1.1 206 x\r\n\r\n", b"<html>\r\n"),
        *(b"HTTP/0.9 200 x\r\n\r\n", b"HTTP/2 200\r\n\r\n", b"\x16\x03\x01" * b),
        b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" * b + honest,
        b"HTTP/1.1 100 Continue\r\n\r\n" * b + honest,
        honest.replace(b"\r\n", b"\r\n" + b"X: y\r\n" * b, 1),
        honest.replace(b"\r\n", b"\r\nX: " + b"y" * 1000 * b + b"\r\n", 1),
        honest.replace(b"\r\n", b"\n"),
        honest + honest,
        honest[: len(honest) * b // 256],
    )
    answer.hides_version = a % len(found) == 12  # the body's own bytes, too
    answer.reply.raw = found[a % len(found)]


def honest(answer: Answer, a: int, b: int) -> None:
    """No step at all."""


STEPS: tuple[Step, ...] = (
    *(honest, with_status, alone_with_status, with_header, cut, lengthened, shifted),
    *(garbled, paged, whole, chunked, redirected, damaged_head, garbage),
)


def stepped(answer: Answer, kind: int, a: int, b: int) -> Reply:
    """What is sent after a step."""
    step = partial(STEPS[kind % len(STEPS)], answer, a, b)
    step()
    answer.reply.is_last = kind % len(STEPS) != 0
    return answer.reply
