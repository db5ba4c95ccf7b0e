"""TLS verifies against the system's store, or there is no connection."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

CLIENT = """
import asyncio, sys
from adjudge.errors import GradingFailure
from adjudge.judges.base import HttpRequest
from adjudge.judges.wire.transport import AiohttpTransport

async def run():
    transport = AiohttpTransport()
    try:
        request = HttpRequest(path="/x", headers={}, body=b"{}")
        print((await transport.post(sys.argv[1], request)).body.decode())
    except GradingFailure as failure:
        print(failure.kind, failure)
    finally:
        await transport.aclose()

asyncio.run(run())
"""


async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    await writer.drain()
    writer.close()


async def client(url: str, store: Path | None) -> str:
    env = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    if store is not None:
        env["SSL_CERT_FILE"] = str(store)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, url, env=env, stdout=subprocess.PIPE
    )
    return (await process.communicate())[0].decode().strip()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")
def test_only_certificates_of_the_store_are_accepted(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def run() -> tuple[str, str]:
        server = await asyncio.start_server(handle, "localhost", 0, ssl=context)
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        try:
            return await client(url, cert), await client(url, None)
        finally:
            server.close()

    known, unknown = asyncio.run(run())
    assert known == "{}"
    assert unknown.endswith("TLS failed (ClientConnectorCertificateError)")
