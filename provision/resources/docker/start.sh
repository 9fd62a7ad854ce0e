# shellcheck shell=sh
# Starts the Docker daemon and waits up to $wait seconds until it answers.
: "${wait:?}"
command -v docker >/dev/null || { echo "docker: not found"; exit 127; }
systemctl start docker
waited=0
until docker version --format '{{.Server.Version}}' 2>/dev/null; do
    test "$waited" -lt "$wait" || { docker version; exit 1; }
    waited=$((waited + 1))
    sleep 1
done
