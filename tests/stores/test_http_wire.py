"""HTTP/1.1 on one connection, held against Python's own parser of it."""

from __future__ import annotations

import http.client
import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushard.stores.http.wire import (
    MOST_HEAD_NBYTES,
    BrokenAnswerError,
    Deadline,
    Wire,
    body_behind,
    read_head,
)


class Pieces:
    """Socket from which bytes come in pieces of some sizes, one after the other."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._left = data
        self._sizes = [*sizes, 1 << 30]
        self.settimeout = lambda _: None

    def close(self) -> None:
        pass

    def recv(self, most: int) -> bytes:
        n = min(most, self._sizes[0])
        if len(self._sizes) > 1:
            self._sizes.pop(0)
        data, self._left = self._left[:n], self._left[n:]
        return data

    def recv_into(self, into: memoryview) -> int:
        data = self.recv(len(into))
        into[: len(data)] = data
        return len(data)


def wire_of(data: bytes, *sizes: int) -> Wire:
    socket: Any = Pieces(data, [*sizes])
    return Wire(socket, Deadline(float("inf"), 1))


def taken(wire: Wire, *, has_body: bool = True, step: int = 7) -> tuple[Any, bytes]:
    """Head and body of the next answer."""
    head = read_head(wire, has_body=has_body)
    body, found, into = body_behind(head, wire), b"", bytearray(step)
    while n := body.read_into(memoryview(into)):
        found += into[:n]
    assert body.is_over
    return head, found


def by_python(data: bytes) -> tuple[int, dict[str, str], bytes]:
    """What Python's client makes of it."""
    socket: Any = SimpleNamespace(makefile=lambda _: io.BytesIO(data))
    answer = http.client.HTTPResponse(socket)
    answer.begin()
    headers = {name.lower(): text for name, text in answer.getheaders()}
    return answer.status, headers, answer.read()


names = st.from_regex(r"X-[A-Za-z0-9_.!~-]{1,8}", fullmatch=True)
texts = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=9)
line_ends = st.sampled_from([b"\r\n", b"\n"])


@st.composite
def answers(draw: Any) -> tuple[bytes, bytes]:
    """An answer of a server, and its body."""
    end = draw(line_ends)
    body = draw(st.binary(max_size=40))
    lines = [f"{name}: {draw(texts)}".encode() for name in draw(st.sets(names))]
    framing = draw(st.sampled_from(["size", "chunks", "end"]))
    sent = body
    if framing == "size":
        lines.append(b"content-LENGTH:%d" % len(body))
    elif framing == "chunks":
        lines.append(b"Transfer-Encoding: Chunked")
        n = draw(st.integers(1, 50))
        cut = [body[i : i + n] for i in range(0, len(body), n)]
        extra = draw(st.sampled_from([b"", b";a=b", b" ;x"]))
        sent = b"".join(b"%X%b\r\n%b\r\n" % (len(c), extra, c) for c in cut)
        sent += b"0%b\r\n%b\r\n" % (extra, draw(st.sampled_from([b"", b"X: y\r\n"])))
    early = [b"HTTP/1.1 100 x", b""] * draw(st.integers(0, 2))
    head = [*early, b"HTTP/1.1 %d x" % draw(st.integers(200, 299)), *lines, b"", b""]
    return end.join(head) + sent, body


@given(answers(), st.lists(st.integers(1, 30), max_size=30), st.integers(1, 64))
def test_an_answer_is_what_pythons_client_makes_of_it(answer, sizes, step):
    data, body = answer
    head, found = taken(wire_of(data, *sizes), step=step)
    status, headers, by_other = by_python(data)
    assert (head.status, head.headers) == (status, headers)
    if status != 204:  # which has none, whatever follows
        assert found == by_other == body


@given(answers(), answers(), st.lists(st.integers(1, 30), max_size=30))
def test_an_answer_ends_where_the_next_one_begins(first, second, sizes):
    data, body = first
    head = read_head(wire_of(data))
    if head.status == 204 or (head.body_nbytes is None and not head.is_chunked):
        return
    wire = wire_of(data + second[0], *sizes)
    assert taken(wire)[1] == body
    assert taken(wire)[0] == read_head(wire_of(second[0]))


@given(answers(), st.data())
def test_an_answer_that_is_cut_is_broken_or_has_no_end(answer, drawn):
    data, body = answer
    n = drawn.draw(st.integers(0, len(data) - 1))
    try:
        head, found = taken(wire_of(data[:n]))
    except BrokenAnswerError:
        return
    ends_itself = head.body_nbytes is not None or head.is_chunked
    assert not ends_itself or head.status == 204
    assert body.startswith(found)


BROKEN = {
    "no HTTP": b"<html>\r\n\r\n",
    "another version": b"HTTP/2 200\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 x\r\n\r\n",
    "no status": b"HTTP/1.1 2x0 x\r\n\r\n",
    "no colon": b"HTTP/1.1 200 x\r\nX\r\n\r\n",
    "no name": b"HTTP/1.1 200 x\r\n: y\r\n\r\n",
    "a blank in a name": b"HTTP/1.1 200 x\r\nX : y\r\n\r\n",
    "a folded line": b"HTTP/1.1 200 x\r\nX: y\r\n z\r\n\r\n",
    "a zero": b"HTTP/1.1 200 x\r\nX: \0\r\n\r\n",
    "a lone return": b'HTTP/1.1 200 x\r\nETag: "a\rb"\r\n\r\n',
    "a negative size": b"HTTP/1.1 200 x\r\nContent-Length: -1\r\n\r\n",
    "a signed size": b"HTTP/1.1 200 x\r\nContent-Length: +1\r\n\r\n",
    "two sizes": b"HTTP/1.1 200 x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a size of 20 digits": b"HTTP/1.1 200 x\r\nContent-Length: %d\r\n\r\n" % 10**19,
    "another coding": b"HTTP/1.1 200 x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 x\r\nX: y\r\n",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_head_is_refused(kind):
    with pytest.raises(BrokenAnswerError):
        read_head(wire_of(BROKEN[kind]))


BROKEN_CHUNKS = (
    *(b"-1\r\nx", b"g\r\nx", b"\r\nx", b"1\r\nx\r\n", b"0\r\n", b"0\r\nX: y"),
    *(b"0x1\r\nx\r\n0\r\n\r\n", b"+1\r\nx\r\n0\r\n\r\n", b"1" * 17 + b"\r\n"),
    *(b"1\r\nxy\r\n0\r\n\r\n", b"1\nxy\n0\n\n"),
)


@pytest.mark.parametrize("chunks", BROKEN_CHUNKS)
def test_a_broken_chunk_is_refused(chunks):
    head = b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with pytest.raises(BrokenAnswerError):
        taken(wire_of(head + chunks))


def test_a_head_may_have_its_full_size_and_not_a_byte_more():
    first, last = b"HTTP/1.1 200 x\r\nX: ", b"\r\n\r\n"
    for more, is_accepted in ((0, True), (1, False)):
        fill = MOST_HEAD_NBYTES - len(first) - len(last) + more
        wire = wire_of(first + b"y" * fill + last, 1, 2, 3)
        if is_accepted:
            assert len(read_head(wire).headers["x"]) == fill
        else:
            with pytest.raises(BrokenAnswerError, match="without end"):
                read_head(wire)


def test_the_answer_to_a_head_has_no_body():
    data = b"HTTP/1.1 200 x\r\nContent-Length: 9\r\n\r\nHTTP/1.1 404 x\r\n\r\n"
    wire = wire_of(data)
    head, body = taken(wire, has_body=False)
    assert (head.headers["content-length"], body) == ("9", b"")
    assert read_head(wire).status == 404


@pytest.mark.parametrize(
    ("version", "told", "stays"),
    [
        *((1, None, True), (1, "keep-alive", True), (1, "Close", False)),
        *((0, None, False), (0, "Keep-Alive", True), (1, "x, close", False)),
    ],
)
def test_a_server_tells_whether_it_takes_another_request(version, told, stays):
    line = "" if told is None else f"Connection: {told}\r\n"
    data = f"HTTP/1.{version} 200 x\r\n{line}Content-Length: 0\r\n\r\n"
    assert read_head(wire_of(data.encode())).keeps_connection == stays


def test_values_of_a_name_that_comes_twice_are_joined():
    data = b"HTTP/1.1 200 x\r\nVary: a\r\nvary:  b \r\n\r\n"
    assert read_head(wire_of(data)).headers == {"vary": "a, b"}


def test_each_wait_is_as_long_as_the_deadline_says(monkeypatch):
    now, waits = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    wire = wire_of(b"HTTP/1.1 200 x\r\nContent-Length: 9\r\n\r\n123456789", *[1] * 60)
    monkeypatch.setattr(wire.socket, "settimeout", waits.append)
    wire.deadline = Deadline(9, 3)
    body = body_behind(read_head(wire), wire)
    for now[0] in (5, 7, 8.5):
        assert body.read_into(memoryview(bytearray(1)))
    assert waits == [*[3] * (len(waits) - 3), 3, 2, 0.5]
    now[0] = 9
    with pytest.raises(TimeoutError, match=re.escape("in time")):
        body.read_into(memoryview(bytearray(1)))
