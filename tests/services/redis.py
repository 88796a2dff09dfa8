"""Redis servers for tests: one alone, a cluster of three shards, one with a replica and sentinels, one with TLS.

| kind | variable | what runs |
|---|---|---|
| redis | TAILROPE_TEST_REDIS | one server |
| redis-cluster | TAILROPE_TEST_REDIS_CLUSTER | three servers, a third of the slots each |
| redis-sentinel | TAILROPE_TEST_REDIS_SENTINEL | a server, its replica, three sentinels |
| redis-tls | TAILROPE_TEST_REDIS_TLS | one server with TLS, user and password |
| | TAILROPE_TEST_REDIS_TLS_CA | the certificate of its authority; beside it are those of a server and a client |

TAILROPE_TEST_REDIS_SERVER=/path/to/valkey-server runs another server program than Debian's redis-server.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import common

USER, PASSWORD = "tailrope-test", "throw-away"
SERVICE = "tailrope"
SLOTS = 16_384
SHARDS = 3
# Servers that stand still for less, as those of a busy machine do, are not taken for dead: tests say who fails over.
STALL_MS = "15000"
# Nothing is kept, and nothing but loopback is listened to.
ALWAYS = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--enable-debug-command", "yes"]


def packages() -> list[str]:
    return ["redis-server", "redis-sentinel", "redis-tools", "openssl"]


def start(folder: Path, kinds: list[str]) -> tuple[dict[str, str], list[subprocess.Popen[bytes]]]:
    """Starts the servers of these kinds. Returns variables for the tests, and what is to be ended, last first."""
    starters = {"redis": alone, "redis-cluster": cluster, "redis-sentinel": sentinel, "redis-tls": tls}
    variables: dict[str, str] = {}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for kind in kinds:
            place = folder / kind
            place.mkdir()
            variables |= starters[kind](place, processes)
    except BaseException:
        for process in reversed(processes):
            process.kill()
            process.wait()
        raise
    return variables, processes


def alone(folder: Path, processes: list[subprocess.Popen[bytes]]) -> dict[str, str]:
    (port,) = common.free_ports(1)
    server(folder, processes, port, ["--port", str(port)])
    return {"TAILROPE_TEST_REDIS": f"redis://127.0.0.1:{port}"}


def cluster(folder: Path, processes: list[subprocess.Popen[bytes]]) -> dict[str, str]:
    ports = common.free_ports(2 * SHARDS)
    nodes, buses = ports[:SHARDS], ports[SHARDS:]
    for at, (port, bus) in enumerate(zip(nodes, buses, strict=True)):
        options = ["--port", str(port), "--cluster-enabled", "yes", "--cluster-port", str(bus)]
        server(folder / str(at), processes, port, [*options, "--cluster-node-timeout", STALL_MS])
    for at, port in enumerate(nodes):
        first, last = SLOTS * at // SHARDS, SLOTS * (at + 1) // SHARDS - 1
        ask(port, "cluster", "addslotsrange", str(first), str(last))
        ask(port, "cluster", "set-config-epoch", str(at + 1))
    for port, bus in zip(nodes[1:], buses[1:], strict=True):
        ask(nodes[0], "cluster", "meet", "127.0.0.1", str(port), str(bus))

    def is_whole() -> bool:
        states = [ask(port, "cluster", "info") for port in nodes]
        return all("cluster_state:ok" in state and f"cluster_size:{SHARDS}" in state for state in states)

    common.wait_until("the Redis cluster", is_whole, processes[-1], folder / str(SHARDS - 1) / "log")
    return {"TAILROPE_TEST_REDIS_CLUSTER": "redis+cluster://" + places(nodes)}


def sentinel(folder: Path, processes: list[subprocess.Popen[bytes]]) -> dict[str, str]:
    primary, replica, *sentinels = common.free_ports(5)
    server(folder / "primary", processes, primary, ["--port", str(primary)])
    of = ["--port", str(replica), "--replicaof", f"127.0.0.1 {primary}", "--repl-diskless-sync-delay", "0"]
    server(folder / "replica", processes, replica, of)
    common.wait_until(
        "the Redis replica",
        lambda: "master_link_status:up" in ask(replica, "info", "replication"),
        processes[-1],
        folder / "replica" / "log",
    )
    for at, port in enumerate(sentinels):
        place = folder / f"sentinel-{at}"
        place.mkdir()
        # It writes what it learns into its file.
        settings = place / "sentinel.conf"
        settings.write_text(
            f"port {port}\nbind 127.0.0.1\nsentinel monitor {SERVICE} 127.0.0.1 {primary} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} {STALL_MS}\nsentinel failover-timeout {SERVICE} 5000\n"
        )
        log = place / "log"
        processes.append(common.start([server_program(), settings, "--sentinel"], log))
        common.wait_until("the Redis sentinel", lambda port=port: ask(port, "ping") == "PONG", processes[-1], log)

    def know_each_other() -> bool:
        states = [ask(port, "sentinel", "master", SERVICE) for port in sentinels]
        return all("num-other-sentinels\n2" in state and "num-slaves\n1" in state for state in states)

    common.wait_until("the Redis sentinels", know_each_other, processes[-1], log)
    return {"TAILROPE_TEST_REDIS_SENTINEL": f"redis+sentinel://{places(sentinels)}/{SERVICE}"}


def tls(folder: Path, processes: list[subprocess.Popen[bytes]]) -> dict[str, str]:
    (port,) = common.free_ports(1)
    common.certify(folder)
    authority, certificate, key = folder / "ca.pem", folder / "server.pem", folder / "server.key"
    options = ["--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no", "--tls-ca-cert-file", str(authority)]
    options += ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    options += ["--user", USER, "on", f">{PASSWORD}", "~*", "&*", "+@all", "--user", "default", "off"]
    login = ["--tls", "--cacert", str(authority), "--user", USER, "--pass", PASSWORD, "--no-auth-warning"]
    server(folder, processes, port, options, login)
    return {
        "TAILROPE_TEST_REDIS_TLS": f"rediss://{USER}:{PASSWORD}@localhost:{port}",
        "TAILROPE_TEST_REDIS_TLS_CA": str(authority),
    }


def server(
    folder: Path,
    processes: list[subprocess.Popen[bytes]],
    port: int,
    options: list[str],
    login: list[str] | None = None,
) -> None:
    """Starts one server and waits until it answers."""
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    processes.append(common.start([server_program(), *ALWAYS, "--dir", folder, *options], log))
    common.wait_until("Redis", lambda: ask(port, "ping", login=login) == "PONG", processes[-1], log)


def ask(port: int, *words: str, login: list[str] | None = None) -> str:
    """What a server says, or nothing when it says nothing."""
    tool = common.program("redis-cli", "redis-tools")
    command = [tool, "-h", "localhost" if login else "127.0.0.1", "-p", str(port), *(login or []), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=common.PATIENCE_S)
    return done.stdout.strip().replace("\r", "") if done.returncode == 0 else ""


def server_program() -> str:
    return os.environ.get("TAILROPE_TEST_REDIS_SERVER") or common.program("redis-server", "redis-server")


def places(ports: list[int]) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports)
