#!/usr/bin/env bash
# On a GPU: the walk of these kernels, one process per group (which also compiles them at once), then their timings.
#
#   kernels/bench/kernels_device.sh OUT GROUP...     GROUP: comma-separated kernel names
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${1:?folder for the results}
shift
export PYTHONPATH=$PWD:$PWD/kernels PYTHONUNBUFFERED=1
for group in "$@"; do
  timeout "${WALK_S:-120}" python3 -m dsv4_kernels.testing.walk --device cuda --kernels "$group" >"$out/walk.${group%%,*}" 2>&1 &
done
wait
cat "$out"/walk.* >"$out/walk.jsonl"
rm "$out"/walk.[!j]*
grep -v '"passes": true' "$out/walk.jsonl" | cut -c1-400
echo "walk: $(grep -c '"passes": true' "$out/walk.jsonl") green, $(grep -c '"passes": false' "$out/walk.jsonl") red"
timeout "${BENCH_S:-150}" python3 kernels/bench/run.py --out "$out/bench.jsonl" --kernels "$(IFS=,; echo "$*")" 2>&1 | tee "$out/bench.txt"
