"""PostgreSQL servers and a pooler for tests: on loopback, at free ports, with their data in a temporary folder.

`postgres` sets TAILROPE_TEST_POSTGRES, `postgres-tls` TAILROPE_TEST_POSTGRES_TLS and TAILROPE_TEST_POSTGRES_TLS_CA (a
server that takes encrypted connections only, but for the user `plain`, who may have none; `certified` needs the
certificate client.pem beside the authority's, and no password), `pgbouncer` TAILROPE_TEST_PGBOUNCER (in transaction
mode, and starts `postgres` behind it).
"""

import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import time

import common

USER = "tailrope"
PLAIN = "plain"
# Has what must be escaped in an address.
PASSWORD = "p@ss/word"
PASSWORD_IN_ADDRESS = "p%40ss%2Fword"
DATABASE = "events"
PATIENCE_S = 60


def packages() -> list[str]:
    """The Debian packages that have the servers."""
    return ["postgresql", "pgbouncer", "openssl"]


def start(folder: pathlib.Path, kinds: list[str]) -> tuple[dict[str, str], list[subprocess.Popen]]:
    """Starts servers whose data is in the folder. Returns what tests are told, and the processes to end, last first."""
    told: dict[str, str] = {}
    processes: list[subprocess.Popen] = []
    give_away(folder)
    try:
        port = 0
        if "postgres" in kinds or "pgbouncer" in kinds:
            port = start_server(folder / "postgres", processes)
            told["TAILROPE_TEST_POSTGRES"] = address(port)
        if "postgres-tls" in kinds:
            certificates = folder / "certificates"
            give_away(certificates)
            common.certify(certificates, "certified")
            for file in certificates.iterdir():
                give_away(file)
            port_tls = start_server(folder / "postgres-tls", processes, certificates)
            told["TAILROPE_TEST_POSTGRES_TLS"] = address(port_tls)
            told["TAILROPE_TEST_POSTGRES_TLS_CA"] = str(certificates / "ca.pem")
        if "pgbouncer" in kinds:
            told["TAILROPE_TEST_PGBOUNCER"] = address(start_pooler(folder / "pgbouncer", port, processes))
    except BaseException:
        for process in reversed(processes):
            process.send_signal(signal.SIGINT)
            process.wait()
        raise
    return told, processes


def address(port: int) -> str:
    return f"postgres://{USER}:{PASSWORD_IN_ADDRESS}@127.0.0.1:{port}/{DATABASE}"


def binary(name: str) -> str:
    """Debian keeps most of them out of PATH."""
    folders = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    for place in [*reversed(folders), pathlib.Path("/usr/sbin")]:
        if (place / name).exists():
            return str(place / name)
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is missing: apt-get install {' '.join(packages())}")
    return found


def as_user() -> list[str]:
    """The servers refuse to run as root."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("postgres")
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


def give_away(path: pathlib.Path) -> None:
    """Lets the user of the servers have it. A folder is made where there is nothing."""
    if not path.exists():
        path.mkdir(parents=True)
    if os.geteuid() == 0:
        shutil.chown(path, "postgres", "postgres")
        for parent in path.parents:
            if parent.stat().st_uid == 0 and parent.stat().st_mode & 0o005 != 0o005 and parent != pathlib.Path("/"):
                parent.chmod(parent.stat().st_mode | 0o011)


def run(command: list[str], **options) -> None:
    done = subprocess.run([*as_user(), *command], capture_output=True, text=True, check=False, cwd="/", **options)
    if done.returncode:
        raise RuntimeError(f"{pathlib.Path(command[0]).name} failed: {done.stdout}{done.stderr}")


def spawn(command: list[str], log: pathlib.Path, processes: list[subprocess.Popen]) -> None:
    with log.open("wb") as out:
        # A group of its own: an interrupt at the keyboard is for the tests.
        process = subprocess.Popen(
            [*as_user(), *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", start_new_session=True
        )
        processes.append(process)


def await_port(port: int, process: subprocess.Popen, log: pathlib.Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)


def start_server(
    folder: pathlib.Path, processes: list[subprocess.Popen], certificates: pathlib.Path | None = None
) -> int:
    give_away(folder)
    data, log, port = folder / "data", folder / "log", common.free_ports(1)[0]
    password = folder / "password"
    password.write_text(PASSWORD)
    password.chmod(0o644)
    initdb = [binary("initdb"), "-D", str(data), "-U", USER, f"--pwfile={password}", "--auth=scram-sha-256"]
    run([*initdb, "--encoding=UTF8", "--locale=C", "--no-sync"])
    settings = {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        # A hundred processes with four each, for `make bench-fleet`.
        "max_connections": 450,
        # Nothing here has to survive the machine.
        "fsync": "off",
        "log_min_messages": "fatal",
    }
    if certificates is not None:
        settings["ssl"] = "on"
        settings["ssl_cert_file"] = certificates / "server.pem"
        settings["ssl_key_file"] = certificates / "server.key"
        settings["ssl_ca_file"] = certificates / "ca.pem"
        rules = [("hostssl", "certified", "cert"), ("hostnossl", PLAIN, "scram-sha-256"), ("hostssl", PLAIN, "reject")]
        rules.append(("hostssl", "all", "scram-sha-256"))
        lines = [f"{kind} all {user} 127.0.0.1/32 {method}\n" for kind, user, method in rules]
        (data / "pg_hba.conf").write_text("".join(lines))
    with (data / "postgresql.auto.conf").open("a") as out:
        out.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    spawn([binary("postgres"), "-D", str(data)], log, processes)
    await_port(port, processes[-1], log)
    statements = [f"CREATE DATABASE {DATABASE}"]
    if certificates is not None:
        statements.append(f"CREATE ROLE certified LOGIN; CREATE ROLE {PLAIN} LOGIN PASSWORD '{PASSWORD}'")
        statements.append(f"GRANT CREATE ON DATABASE {DATABASE} TO certified, {PLAIN}")
    run_statements(port, "require" if certificates is not None else "disable", statements)
    return port


def run_statements(port: int, sslmode: str, statements: list[str]) -> None:
    """The port is open a little before the server takes users."""
    deadline = time.monotonic() + PATIENCE_S
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    environment = {**inherited, "PGPASSWORD": PASSWORD, "PGSSLMODE": sslmode, "HOME": "/nonexistent"}
    psql = [binary("psql"), "-X", "-q", "-h", "127.0.0.1", "-p", str(port), "-U", USER, "-d", "postgres"]
    while True:
        try:
            run([*psql, "-c", "SELECT"], env=environment)
            break
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    for statement in statements:
        run([*psql, "-v", "ON_ERROR_STOP=1", "-c", statement], env=environment)


def start_pooler(folder: pathlib.Path, of_port: int, processes: list[subprocess.Popen]) -> int:
    give_away(folder)
    (port,) = common.free_ports(1)
    (folder / "users").write_text(f'"{USER}" "{PASSWORD}"\n')
    (folder / "pgbouncer.ini").write_text(
        f"""[databases]
{DATABASE} = host=127.0.0.1 port={of_port} dbname={DATABASE}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder / "users"}
pool_mode = transaction
# Fewer than a store has connections, so that they really are shared.
default_pool_size = 3
max_client_conn = 500
"""
    )
    spawn([binary("pgbouncer"), str(folder / "pgbouncer.ini")], folder / "log", processes)
    await_port(port, processes[-1], folder / "log")
    return port
