# What Ray has to know where it is started: `. deploy/ray/env.sh`, before `ray start` on every node or `serve run`.
root="$(cd "$(dirname "${BASH_SOURCE:-$0}")/../.." && pwd)"
export PATH="$root/.venv-ray/bin:$PATH"
export PYTHONPATH="$root"                                                    # where deploy/ is found
export RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=deploy.ray.edge.middlewares # marks, and errors in our words
export RAY_SERVE_COLLECT_AUTOSCALING_METRICS_ON_HANDLE=0                     # replicas count what they do themselves
export RAY_USAGE_STATS_ENABLED=0
