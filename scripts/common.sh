# Sourced by the other scripts: where things are, and which Python makes the virtual environments.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venvs="$root/.venv"

say() { printf '%s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Prints the first interpreter that is new enough; PYTHON=... overrules the search.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed; none of '${PYTHON:-python3, python3.14 ... python3.11}' is.
       Install one, or name it: make setup PYTHON=/path/to/python3"
}

check_node() {
    command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 ||
        fail "Node 20 or newer, with npm, is needed for the Node package"
    node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || fail "Node 20 or newer is needed, this is $(node -v)"
}

# Debian ships the venv module without ensurepip unless python3-venv is installed.
ensure_venv_module() {
    local python="$1" version package as_root=""
    "$python" -c 'import ensurepip, venv' 2>/dev/null && return
    version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    package="python$version-venv"
    command -v apt-get >/dev/null 2>&1 ||
        fail "$python cannot make virtual environments (no ensurepip): install its venv package"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || fail "$python cannot make virtual environments: install $package"
        as_root=sudo
    fi
    say "setup: installing $package"
    $as_root apt-get update -qq
    $as_root apt-get install -y -qq "$package" >/dev/null
}

# Reads paths from standard input, prints one hash over their names and contents.
hash_files() { LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum | cut -d' ' -f1; }
