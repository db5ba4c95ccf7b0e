"""The names of aiohttp's own that the transport builds on; they are private and may change."""

import asyncio
import inspect

import aiohttp
from aiohttp.client_proto import ResponseHandler

from adjudge.judges.wire.transport import _Connector, _Handler

ADVICE = "aiohttp changed: see _Connector and _Handler in judges/wire/transport.py"


def test_connections_are_made_and_released_where_the_transport_steps_in() -> None:
    async def run() -> None:
        plain = aiohttp.TCPConnector()
        made = plain._factory()
        assert type(made) is ResponseHandler, ADVICE
        release = inspect.signature(aiohttp.BaseConnector._release)
        assert list(release.parameters) == ["self", "key", "protocol", "should_close"], ADVICE
        assert "set_response_params" in vars(ResponseHandler), ADVICE
        ours = _Connector(None)
        assert type(ours._factory()) is _Handler, ADVICE
        await plain.close()
        await ours.close()

    asyncio.run(run())


def test_a_pooled_connection_knows_that_it_is_idle() -> None:
    """Through aiohttp's public face: whatever it calls within must still reach our hooks."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        connector = _Connector(None)
        async with aiohttp.ClientSession(connector=connector) as session:
            for _ in range(2):
                async with session.get(url) as response:
                    await response.read()
                [pool] = connector._conns.values()
                [(handler, _)] = pool
                assert isinstance(handler, _Handler), ADVICE
                assert handler.idle, ADVICE
            handler.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            assert not handler.is_connected(), ADVICE
        server.close()

    asyncio.run(run())
