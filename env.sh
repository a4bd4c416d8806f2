# shellcheck shell=bash
# source env.sh       sets up this shell (bash or zsh) for the cluster of kubectl's context: see `client env --help`
# source env.sh down  restores the shell
# An error never ends the shell that sources this file, even with `set -e` or `set -u`.
if [ -z "${BASH_VERSION-}${ZSH_VERSION-}" ]; then
    echo "error: env.sh needs bash or zsh; in another shell: eval \"\$(client env)\"" >&2
    return 0
fi
# The path of this file. zsh's syntax is in `eval`, because bash cannot parse it.
if [ -n "${ZSH_VERSION-}" ]; then eval '_muster_client=${(%):-%x}'; else _muster_client=${BASH_SOURCE[0]-$0}; fi
if _muster_client=$(CDPATH='' cd -- "$(dirname -- "$_muster_client")" >/dev/null 2>&1 && pwd)/dist/client; then :; fi
[ -x "$_muster_client" ] || _muster_client=client
if ! command -v "$_muster_client" >/dev/null 2>&1; then
    echo 'error: there is no client in dist/ and none on the PATH: run make build' >&2
elif [ "${1-}" = down ]; then
    eval "$("$_muster_client" env --unset)" || :
else
    eval "$("$_muster_client" env)" || :
fi
unset _muster_client
