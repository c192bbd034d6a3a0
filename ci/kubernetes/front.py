"""front.py tls PORT TO_PORT CERT KEY: ends TLS at PORT, and passes the bytes on to TO_PORT of this machine.
front.py proxy PORT: an HTTP proxy that makes tunnels (CONNECT), and says where to, a line for each.
front.py heads PORT TO_PORT: passes HTTP on to TO_PORT of this machine, and says a line for each request: method, path, session token.
front.py holds PORT TO_PORT FILE: the same, with the words `before N` or `after N` in FILE: the Nth request since FILE was written and those behind
it, or the answers to them, are held until FILE is gone. It says `held` then, and in the end `passed`, or `dropped` if the client went away."""

import asyncio
import os
import ssl
import sys


async def passed_on(source, sink):
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass  # either end may go at any time
    finally:
        sink.close()


async def joined(here, there):
    await asyncio.gather(passed_on(here[0], there[1]), passed_on(there[0], here[1]))


async def tunnel(reader, writer):
    method, target, _ = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[0].split(" ")
    print(method, target, flush=True)
    if method != "CONNECT":
        writer.write(b"HTTP/1.1 405 only tunnels\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        return
    host, port = target.rsplit(":", 1)
    there = await asyncio.open_connection(host, int(port))
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    await joined((reader, writer), there)


def fields_of(head):
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.decode().split("\r\n")[1:])}


async def requests(reader, there):
    """Each request has the length of its body, as the engine and curl write it."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        fields = fields_of(head)
        method, path, _ = head.decode().split("\r\n")[0].split(" ")
        print(method, path, "token=" + fields.get("x-amz-security-token", "none"), flush=True)
        there.write(head)
        left = int(fields.get("content-length", 0))
        while left and (data := await reader.read(min(left, 65536))):
            left -= len(data)
            there.write(data)
            await there.drain()


async def heads(reader, writer, port):
    there = await asyncio.open_connection("127.0.0.1", port)
    answers = asyncio.create_task(passed_on(there[0], writer))
    try:
        await requests(reader, there[1])
    except (asyncio.IncompleteReadError, OSError):
        pass  # either end may go at any time
    finally:
        there[1].close()
        await answers


class Hold:
    def __init__(self, file):
        self.file, self.known, self.seen = file, None, 0

    def next(self):
        """What to hold of this request: before, after or nothing."""
        try:
            with open(self.file) as file:
                known = os.fstat(file.fileno()).st_ino, file.read().split()
        except FileNotFoundError:
            known = None
        if known != self.known:
            self.known, self.seen = known, 0
        self.seen += 1
        return known[1][0] if known and self.seen >= int(known[1][1]) else None

    async def released(self, reader, what):
        """Whether the client still waits once FILE is gone."""
        print("held", what, flush=True)
        while True:
            if reader.at_eof() or reader.exception():
                print("dropped", flush=True)
                return False
            if not os.path.exists(self.file):
                print("passed", flush=True)
                return True
            await asyncio.sleep(0.02)


async def answer(there, method):
    """A whole answer."""
    whole = await there.readuntil(b"\r\n\r\n")
    fields, status = fields_of(whole), whole.split(b" ")[1]
    if method == "HEAD" or status in (b"204", b"304"):
        return whole
    if "chunked" not in fields.get("transfer-encoding", ""):
        return whole + await there.readexactly(int(fields.get("content-length", 0)))
    while True:
        size = await there.readuntil(b"\r\n")
        whole += size + await there.readexactly(int(size, 16) + 2)
        if int(size, 16) == 0:
            return whole


async def holds(reader, writer, port, hold):
    """One request and its answer at a time, each whole in memory."""
    there, sink = await asyncio.open_connection("127.0.0.1", port)
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            first = head.decode().split("\r\n")[0]
            body = await reader.readexactly(int(fields_of(head).get("content-length", 0)))
            what = hold.next()
            print(first, flush=True)
            if what == "before" and not await hold.released(reader, "before " + first):
                return
            sink.write(head + body)
            answered = await answer(there, first.split(" ")[0])
            if what == "after" and not await hold.released(reader, "after " + first):
                return
            writer.write(answered)
            await writer.drain()
    except (asyncio.IncompleteReadError, OSError):
        pass  # either end may go at any time
    finally:
        sink.close()
        writer.close()


async def main(kind, port, *rest):
    if kind == "tls":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*rest[1:])

        async def plain(reader, writer):
            await joined((reader, writer), await asyncio.open_connection("127.0.0.1", int(rest[0])))

        server = await asyncio.start_server(plain, "0.0.0.0", int(port), ssl=context)
    elif kind == "heads":
        server = await asyncio.start_server(lambda reader, writer: heads(reader, writer, int(rest[0])), "0.0.0.0", int(port))
    elif kind == "holds":
        hold = Hold(rest[1])
        server = await asyncio.start_server(lambda reader, writer: holds(reader, writer, int(rest[0]), hold), "0.0.0.0", int(port))
    else:
        server = await asyncio.start_server(tunnel, "0.0.0.0", int(port))
    await server.serve_forever()


asyncio.run(main(*sys.argv[1:]))
