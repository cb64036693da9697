#!/usr/bin/env bash
# Quantize the bundled model and show what it cost, on a machine that has only Python and a C compiler.
#
#   ./scripts/demo.sh                 from any folder; can be run again
#   PYTHON=python3.12 ./scripts/demo.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/scripts/venv.sh"
cd "$root"

make_venv "$root/.venv-demo"
echo "== installing qtool into .venv-demo"
rm -rf "$root"/build/lib* "$root"/build/bdist*  # setuptools would install modules that no longer exist
"$VENV/bin/python" -m pip install -qq --disable-pip-version-check "$root"

rm -rf demo-out
mkdir demo-out
quantized=demo-out/mnist_cnn.int8.onnx

echo "== qtool quantize examples/mnist_cnn.onnx --calib examples/mnist_calib.npz -o $quantized"
"$VENV/bin/qtool" quantize examples/mnist_cnn.onnx --calib examples/mnist_calib.npz -o "$quantized"
echo
echo "== qtool eval examples/mnist_cnn.onnx $quantized --data examples/mnist_eval.npz --labels labels"
"$VENV/bin/qtool" eval examples/mnist_cnn.onnx "$quantized" --data examples/mnist_eval.npz --labels labels
