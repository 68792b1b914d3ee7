#!/bin/sh
# vllm-router before services: deploy/router/run.sh http://one:8000 http://two:8000 [its other options]
#
# cache_aware         a conversation goes where its beginning was, by x-session-id or else by its text; one that is
#                     new, or whose replica has 4 more to do and a quarter more than another, to whoever has least
# health              /readyz turns red at a service's first signal: one bad answer is enough, and a good one to return
# retries             a request that meets a service between its signal and the next look is sent again, 2 s in all
# circuit breaker     off: who is ready is known from /readyz, and a 503 of ours says only that this one goes
exec vllm-router \
  --policy cache_aware --balance-abs-threshold 4 --balance-rel-threshold 1.25 \
  --health-check-endpoint /readyz --health-check-interval-secs 1 --health-check-timeout-secs 5 \
  --health-failure-threshold 1 --health-success-threshold 1 \
  --retry-max-retries 5 --retry-initial-backoff-ms 200 --retry-backoff-multiplier 2 --retry-max-backoff-ms 1000 \
  --disable-circuit-breaker \
  --worker-startup-check-interval 1 \
  --worker-urls "$@"
