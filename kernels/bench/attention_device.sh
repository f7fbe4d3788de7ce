#!/usr/bin/env bash
# On a Hopper GPU: gates of all attention candidates (in parallel, which also compiles them), then the timings.
#
#   kernels/bench/attention_device.sh OUT [SECONDS]      SECONDS: for each of decode and prefill, default 120
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${1:?folder for the results}
export PYTHONPATH=$PWD:$PWD/kernels PYTHONUNBUFFERED=1
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.draw,power.limit --format=csv
skip=""
for heads in 16 64 128; do
  timeout 120 python3 kernels/bench/attention.py --out /dev/null --what gate --heads $heads --quick >"$out/gate$heads.txt" 2>&1 &
done
wait %1 %2 %3
timeout 5 grep -q gates: "$out/gate64.txt" || skip=hopper
tail -n 12 "$out"/gate*.txt
timeout $((2 * ${2:-120} + 90)) python3 kernels/bench/attention.py --out "$out/attention.jsonl" --seconds "${2:-120}" --skip "$skip" >"$out/attention.txt" 2>&1
grep -v "kernel=sparse_decode\|^sparse_decode" "$out/attention.txt" | tail -40
