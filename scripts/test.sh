#!/usr/bin/env bash
# Set up .venv-test and run the whole test suite; arguments go to pytest.
#
#   ./scripts/test.sh
#   ./scripts/test.sh tests/cli -k json
#   PYTHON=python3.12 ./scripts/test.sh
#
# Tests marked `zoo` need the folder of real models: QTOOL_ZOO, by default ../shared/zoo beside the repository.
# Without it they are skipped; with QTOOL_REQUIRE_ZOO=1 that is an error.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/scripts/venv.sh"
cd "$root"

make_venv "$root/.venv-test"
echo "== installing qtool with its development tools into .venv-test"
# editable: tests import the tree that they lie in, so its extension must be built in place
"$VENV/bin/python" -m pip install -qq --disable-pip-version-check --editable "$root[dev,report]"

if [ -z "${QTOOL_ZOO:-}" ] && [ -d "$root/../shared/zoo" ]; then
    QTOOL_ZOO=$(cd "$root/../shared/zoo" && pwd)
    export QTOOL_ZOO
fi
# one process per core, each with one thread: kernels and onnxruntime would otherwise fight for the cores
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# and threads that wait for each other let the other process work
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
# the suite starts some hundred interpreters, each of which would compile qtool again
unset PYTHONDONTWRITEBYTECODE

echo "== pytest"
exec "$VENV/bin/python" -m pytest -n auto --dist worksteal "$@"
