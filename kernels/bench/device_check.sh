#!/usr/bin/env bash
# On a machine with a GPU: the registry walk (kernels side by side), graph and two-stream tests, then the timings.
#
#   kernels/bench/device_check.sh OUT [KERNELS]     KERNELS: comma-separated names, default all
#   WALK_S, TESTS_S, BENCH_S: seconds that each part may take (defaults 120, 90, 150); 0 leaves a part out
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${1:?folder for the results}
export PYTHONPATH=$PWD:$PWD/kernels PYTHONUNBUFFERED=1
kernels=${2:-$(python3 -c 'from dsv4_kernels.registry import specs; print(",".join(specs()))')}
bad=0
walks=$(mktemp -d)
if [[ ${WALK_S:=120} != 0 ]]; then
    tr , '\n' <<<"$kernels" | xargs -P 12 -I{} sh -c \
        "timeout $WALK_S python3 -m dsv4_kernels.testing.walk --device cuda --kernels {} >$walks/{}.jsonl 2>$walks/{}.err || { echo {} >>$walks/bad; tail -n 3 $walks/{}.err; }"
    cat "$walks"/*.jsonl >"$out/walk.jsonl"
    python3 - "$out/walk.jsonl" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
bad = [r for r in rows if not r["passes"]]
print(f"walk: {len(rows)} cases of {len({r['kernel'] for r in rows})} kernels, {len(bad)} bad")
for r in bad:
    print("BAD", r["kernel"], r["variant"], r["case"], r["text"][-300:])
PY
    [[ -e $walks/bad ]] && bad=1
fi
if [[ ${TESTS_S:=90} != 0 ]]; then
    pick=$(sed 's/,/ or /g' <<<"$kernels")
    timeout "$TESTS_S" python3 -m pytest -q -n 8 -p no:cacheprovider tests/kernels/test_registry_walk.py \
        -k "(graph or streams) and ($pick)" 2>&1 | tail -n 25 | tee "$out/tests.txt" || bad=1
fi
if [[ ${BENCH_S:=150} != 0 ]]; then
    timeout "$BENCH_S" python3 kernels/bench/run.py --out "$out/bench.jsonl" --kernels "$kernels" 2>&1 |
        tee "$out/bench.txt" || bad=1
fi
exit $bad
