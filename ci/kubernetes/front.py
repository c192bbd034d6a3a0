"""front.py tls PORT TO_PORT CERT KEY: ends TLS at PORT, and passes the bytes on to TO_PORT of this machine.
front.py proxy PORT: an HTTP proxy that makes tunnels (CONNECT), and says where to, a line for each.
front.py heads PORT TO_PORT: passes HTTP on to TO_PORT of this machine, and says a line for each request: method, path, session token."""

import asyncio
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


async def requests(reader, there):
    """Each request has the length of its body, as the engine and curl write it."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        method, path, _ = first.split(" ")
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


async def main(kind, port, *rest):
    if kind == "tls":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*rest[1:])

        async def plain(reader, writer):
            await joined((reader, writer), await asyncio.open_connection("127.0.0.1", int(rest[0])))

        server = await asyncio.start_server(plain, "0.0.0.0", int(port), ssl=context)
    elif kind == "heads":
        server = await asyncio.start_server(lambda reader, writer: heads(reader, writer, int(rest[0])), "0.0.0.0", int(port))
    else:
        server = await asyncio.start_server(tunnel, "0.0.0.0", int(port))
    await server.serve_forever()


asyncio.run(main(*sys.argv[1:]))
