#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Checks the dependencies that are linked: licences, sources, duplicate versions, and known
# vulnerabilities if their list can be downloaded.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
. tools/pinned.sh
install_pinned cargo-deny
deny=build/tools/bin/cargo-deny

"$deny" --log-level warn check --hide-inclusion-graph licenses bans sources
if "$deny" --log-level off fetch db 2>/dev/null; then
    "$deny" --log-level warn check --disable-fetch advisories
else
    echo "deny: the list of vulnerabilities cannot be downloaded: vulnerabilities not checked"
fi
