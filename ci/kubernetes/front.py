"""front.py tls PORT TO_PORT CERT KEY: ends TLS at PORT, and passes the bytes on to TO_PORT of this machine.
front.py proxy PORT: an HTTP proxy that makes tunnels (CONNECT), and says where to, a line for each."""

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


async def main(kind, port, *rest):
    if kind == "tls":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*rest[1:])

        async def plain(reader, writer):
            await joined((reader, writer), await asyncio.open_connection("127.0.0.1", int(rest[0])))

        server = await asyncio.start_server(plain, "0.0.0.0", int(port), ssl=context)
    else:
        server = await asyncio.start_server(tunnel, "0.0.0.0", int(port))
    await server.serve_forever()


asyncio.run(main(*sys.argv[1:]))
