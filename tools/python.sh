#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Builds the Python wheel, installs it into a virtual environment of its own, and runs the tests of
# `py/` and the notebook. Part of `make unit`. Arguments go to pytest: `tools/python.sh -k sweep`.
# `tools/python.sh wheel FOLDER` only builds an optimised wheel.
#
# SCXLAB names the command of the same build, with which tests compare; by default that of cargo's
# debug build. Everything lies in target/python.
set -eu

cd "$(dirname "$0")/.."
folder=target/python
python=$folder/venv/bin/python

make_environment() {
    # A changed list of packages makes the environment anew.
    cmp -s py/requirements.txt "$folder/requirements.txt" && return
    rm -rf "$folder/venv" "$folder/requirements.txt"
    mkdir -p "$folder"
    python3 -m venv "$folder/venv"
    # uv is many times faster than pip, but does not know an index that only pip is told of.
    "$python" -m pip --quiet --disable-pip-version-check install uv==0.13.9
    "$folder/venv/bin/uv" --quiet pip install --python "$python" -r py/requirements.txt ||
        "$python" -m pip --quiet --disable-pip-version-check install -r py/requirements.txt
    cp py/requirements.txt "$folder/requirements.txt"
}

# build_wheel FOLDER ARGUMENTS_OF_MATURIN
build_wheel() {
    wheels=$1
    shift
    rm -rf "$wheels"
    "$python" -m maturin build --quiet --locked --manifest-path py/Cargo.toml --out "$wheels" "$@"
}

# With the profile and the features of the other tests, whose build results it shares.
install_wheel() {
    build_wheel "$folder/wheels" --profile dev --features tests
    "$python" -m pip --quiet --disable-pip-version-check install --force-reinstall --no-deps \
        "$folder"/wheels/*.whl
}

make_environment
if [ "${1:-}" = wheel ]; then
    build_wheel "$2" --profile release
    exit
fi
install_wheel
SCXLAB=${SCXLAB:-$PWD/target/debug/scxlab}
export SCXLAB
[ -x "$SCXLAB" ] || { echo "python: no $SCXLAB: cargo build --package scxlab-cli" >&2; exit 1; }
cd py
exec "../$python" -m pytest -q -p no:cacheprovider --nbmake tests ../docs/guide/slices.ipynb "$@"
