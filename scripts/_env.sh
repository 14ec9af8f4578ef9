# shellcheck shell=bash
# Sourced by try, test and lint: makes .venv once and installs this project into it when pyproject.toml changed.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
# shellcheck disable=SC2034  # used by the scripts that source this file
python=$venv/bin/python

step() { printf '== %s\n' "$*" >&2; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11; do
        if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    fail "no Python 3.11 or newer among python3, python3.13, python3.12 and python3.11 on PATH"
}

usable() { "$python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# Debian ships Python without ensurepip, so `-m venv` alone is not enough there.
make_venv() {
    local base=$1 package
    "$base" -m venv --clear "$venv" >/dev/null 2>&1 && usable && return
    "$base" -m virtualenv --clear --quiet "$venv" >/dev/null 2>&1 && usable && return
    "$base" -m venv --clear --without-pip "$venv" >/dev/null 2>&1 &&
        "$base" -m pip --python "$python" install --quiet pip >/dev/null 2>&1 && usable && return
    rm -rf -- "$venv"
    package=$("$base" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        step "installing $package, which $base lacks"
        apt-get update -qq >&2 || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >&2 ||
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >&2 ||
            fail "apt-get could not install $package"
        "$base" -m venv --clear "$venv" >&2 && usable && return
    fi
    rm -rf -- "$venv"
    fail "$base cannot make a virtual environment. On Debian or Ubuntu: sudo apt-get install $package"
}

compiles() { printf 'int main(void) { return 0; }\n' | cc -x c -o /dev/null - >/dev/null 2>&1; }

# The tests build shared libraries that stand in for the driver's.
ensure_compiler() {
    compiles && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        step "installing gcc and libc6-dev, which the tests need"
        apt-get update -qq >&2 || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev >&2 ||
            fail "apt-get could not install gcc and libc6-dev"
        compiles && return
    fi
    fail "the tests need a C compiler called cc. On Debian or Ubuntu: sudo apt-get install gcc libc6-dev"
}

stamp_value() {
    "$python" -c 'import hashlib, sys
print(sys.argv[1], hashlib.sha256(open(sys.argv[1] + "/pyproject.toml", "rb").read()).hexdigest())' "$root"
}

# ensure_env try: what a run needs. ensure_env dev: that, and all extras, tests and linters.
ensure_env() {
    local kind=$1 base value pip
    if ! usable; then
        base=$(find_python)
        step "making .venv with $("$base" --version)"
        make_venv "$base"
    fi
    value=$(stamp_value)
    # The environment for development holds all that a run needs.
    if grep -qsxF -- "$value" "$venv/.installed-$kind" "$venv/.installed-dev"; then
        return
    fi
    pip=("$python" -m pip --disable-pip-version-check --quiet)
    cd -- "$root"
    if [ "$kind" = dev ]; then
        step "installing pytest-moegpu with all extras, tests and linters into .venv"
        # Dependency groups need pip 25.1.
        "${pip[@]}" install --upgrade 'pip>=25.1'
        "${pip[@]}" install -e '.[embedded,report,prometheus,fast]' --group test --group lint
    else
        step "installing pytest-moegpu with the embedded llama.cpp server into .venv"
        "${pip[@]}" install -e '.[embedded]'
    fi
    printf '%s\n' "$value" >"$venv/.installed-$kind"
}
