#!/bin/sh
# vllm-router before services: deploy/router/run.sh http://one:8000 http://two:8000 [its other options, which win]
#
# sticky_least_loaded  a session (x-session-id) stays with its service, a new one goes where there are fewest;
#                      `--policy cache_aware` goes by the text of a request in place of its session
# health               /readyz turns red at a service's first signal: one bad answer is enough, and a good one to return
# retries              a request that meets a service between its signal and the next look is sent again, some 3 s in all
# circuit breaker      off: who is ready is known from /readyz, and a 503 of ours says only that this one goes
urls=""
while [ $# -gt 0 ] && [ "${1#http}" != "$1" ]; do urls="$urls $1"; shift; done
exec vllm-router \
  --worker-urls $urls \
  --policy sticky_least_loaded --balance-abs-threshold 4 --balance-rel-threshold 1.25 \
  --health-check-endpoint /readyz --health-check-interval-secs 1 --health-check-timeout-secs 5 \
  --health-failure-threshold 1 --health-success-threshold 1 \
  --retry-max-retries 5 --retry-initial-backoff-ms 200 --retry-backoff-multiplier 2 --retry-max-backoff-ms 1000 \
  --disable-circuit-breaker \
  --worker-startup-check-interval 1 \
  "$@"
