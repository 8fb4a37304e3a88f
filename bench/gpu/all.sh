#!/bin/sh
# Runs everything that needs a GPU, in order and within a limit, and keeps what comes out.
#
#     bench/gpu/all.sh OUTPUT [--minutes M] [--part 1|2|3] [--new NCCL] [--pack] [-- OPTIONS OF EVERY SCRIPT]
#
# Part 1: does NCCL load the plugin, and the landscape. Part 2: tuned against default, and the second recipe where NCCL
# is new enough. Part 3: the gate from this NCCL to that of --new, such as 2.28.9 to 2.32.3; not run on a GPU so far.
# Without --part 1 and 2, in 25 minutes; a part alone takes 9. OUTPUT may be left out where $OUT is set.
# --pack leaves one archive beside the few files that matter. No setting of the GPU is touched.
# Exit code: 0 if every step ended well, else 1; summary.txt names each.
set -u

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
out=${OUT:-}
minutes='' part=all pack='' new=''
while [ $# -gt 0 ]; do
  case $1 in
    --minutes) minutes=$2; shift 2 ;;
    --part) part=$2; shift 2 ;;
    --new) new=$2; shift 2 ;;
    --pack) pack=yes; shift ;;
    --) shift; break ;;
    -*) echo "all.sh: no option $1" >&2; exit 2 ;;
    *) out=$1; shift ;;
  esac
done
case $part in 1|2|3) minutes=${minutes:-9} ;; all) minutes=${minutes:-25} ;; *) echo "all.sh: no part $part" >&2; exit 2 ;; esac
case $minutes in ''|*[!0-9]*) echo "all.sh: --minutes takes a whole number" >&2; exit 2 ;; esac
[ "$minutes" -ge 2 ] || { echo "all.sh: 2 minutes are the least" >&2; exit 2; }
[ "$part" != 3 ] || [ -n "$new" ] || { echo "all.sh: part 3 needs --new" >&2; exit 2; }
[ -n "$out" ] || { echo "all.sh: where to? name a folder" >&2; exit 2; }
mkdir -p "$out/work" || exit 2
work=$out/work
end=$(($(date +%s) + 60 * minutes))
failed=0
PYTHONUNBUFFERED=1
export PYTHONUNBUFFERED

left() { echo $((end - $(date +%s))); }

# step NAME SHARE COMMAND...: at most SHARE percent of the time that is left, and never beyond the end.
step() {
  name=$1 limit=$(($(left) * $2 / 100))
  shift 2
  if [ "$limit" -lt 20 ]; then
    echo "$name: not begun, $limit s are left for it" | tee -a "$out/summary.txt"
    failed=1
    return
  fi
  began=$(date +%s)
  timeout --kill-after=20 "$limit" "$@" >"$work/$name.txt" 2>&1
  code=$?
  echo "$name: exit code $code after $(($(date +%s) - began)) s of $limit" | tee -a "$out/summary.txt"
  tail -n 12 "$work/$name.txt"
  [ "$code" -eq 0 ] || failed=1
}

# scripts stop beginning new work this long before their limit, in minutes with one digit
budget() { echo "$(($(left) * $1 * 80 / 600000)).$((($(left) * $1 * 80 / 60000) % 10))"; }

facts() {
  date -u
  uname -a
  nproc
  nvidia-smi -q 2>&1 || echo "nvidia-smi: not there or no GPU"
  cat /proc/driver/nvidia/version 2>&1
  cat /etc/nccl.conf 2>/dev/null && echo "(that was /etc/nccl.conf, which NCCL reads)"
  "$python" -V
  "$python" -m pip list 2>/dev/null | grep -i -E 'nccl|torch|cuda|ncclt'
  "$python" -c 'import ncclt; print("ncclt", ncclt.__version__)'
}
facts >"$work/facts.txt" 2>&1
date -u +"%Y-%m-%dT%H:%M:%SZ part $part, $minutes minutes" >>"$out/summary.txt"

if [ "$part" = 3 ]; then
  step upgrade 95 "$python" "$here/upgrade.py" --output "$work/upgrade" --new "$new" "$@"
fi
if [ "$part" = 1 ] || [ "$part" = all ]; then
  step plugin_loads 50 "$python" "$here/plugin_loads.py" --output "$work/plugin_loads" "$@"
  share=90; [ "$part" = all ] && share=45
  step landscape $share "$python" "$here/landscape.py" --output "$work/landscape" --minutes "$(budget $share)" "$@"
fi
if [ "$part" = 2 ] || [ "$part" = all ]; then
  step tuned 75 "$python" "$here/tuned.py" --output "$work/tuned" --minutes "$(budget 75)" "$@"
  if "$python" "$here/supports.py" one-host "$@" >"$work/one_host.txt" 2>&1; then
    step plugin_loads_one_host 80 "$python" "$here/plugin_loads.py" --output "$work/one_host" "$@" --recipe one-host
  else
    echo "plugin_loads_one_host: not tried: $(tail -n 1 "$work/one_host.txt")" | tee -a "$out/summary.txt"
  fi
fi

for result in landscape/landscape.csv landscape/landscape.json plugin_loads/plugin_loads.json tuned/tuned.json upgrade/upgrade.json; do
  [ -f "$work/$result" ] && cp "$work/$result" "$out/"
done
if [ -n "$pack" ]; then
  rm -f "$work"/*/libnccl-tuner-ncclt.so
  tar -C "$out" -czf "$out/work-part-$part.tar.gz" work && rm -rf "$work"
fi
exit $failed
