#!/usr/bin/env bash
# On a machine with a GPU: the registry walk, graph capture and two-stream tests, then the timings.
#
#   kernels/bench/device_check.sh OUT [KERNELS]     KERNELS: comma-separated names, default all
#   WALK_S, TESTS_S, BENCH_S: seconds that each part may take (defaults 150, 150, 200)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${1:?folder for the results}
kernels=${2:-}
export PYTHONPATH=$PWD:$PWD/kernels PYTHONUNBUFFERED=1
bad=0
timeout "${WALK_S:-150}" python3 -m dsv4_kernels.testing.walk --device cuda --kernels "$kernels" >"$out/walk.jsonl" 2>"$out/walk.err" || bad=1
python3 - "$out/walk.jsonl" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
bad = [r for r in rows if not r["passes"]]
print(f"walk: {len(rows)} cases, {len(bad)} bad")
for r in bad:
    print("BAD", r["kernel"], r["variant"], r["case"], r["text"][:200])
PY
tail -3 "$out/walk.err"
timeout "${TESTS_S:-150}" python3 -m pytest -q -x --maxfail=20 -p no:cacheprovider tests/kernels/test_registry_walk.py -k "graph or streams" 2>&1 | tail -40 | tee "$out/tests.txt" || bad=1
timeout "${BENCH_S:-200}" python3 kernels/bench/run.py --out "$out/bench.jsonl" --kernels "$kernels" 2>&1 | tee "$out/bench.txt" || bad=1
exit $bad
