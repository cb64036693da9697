# Sourced by the other scripts: make_venv FOLDER makes (or reuses) a virtual environment and sets VENV.
# PYTHON chooses the interpreter; python3 by default.

fail() {
    echo "error: $*" >&2
    exit 2
}

make_venv() {
    local python=${PYTHON:-python3}
    VENV=$1
    command -v "$python" >/dev/null 2>&1 || fail "there is no '$python'; install Python 3.11 or newer, or set PYTHON"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "'$python' is $("$python" -V 2>&1); qtool needs Python 3.11 or newer (set PYTHON)"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "'$python' has no venv or pip; on Debian: apt-get install python3-venv"
    # one that was made by another interpreter, or that was interrupted, is made anew
    if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1 ||
        [ "$("$VENV/bin/python" -c 'import sys; print(sys.version)')" != "$("$python" -c 'import sys; print(sys.version)')" ]; then
        rm -rf "$VENV"
        "$python" -m venv "$VENV" || fail "'$python -m venv $VENV' failed"
    fi
    command -v "${CC:-cc}" >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 ||
        fail "there is no C compiler; on Debian: apt-get install gcc"
}
