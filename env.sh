# shellcheck shell=bash
# env.sh: prepares a shell, bash or zsh, for Muster on the Kubernetes cluster of kubectl's context.
#
#   source env.sh         sets MUSTER_MASTER, MUSTER_TOKEN, and what brings images to the nodes; puts dist/ on PATH
#   source env.sh down    gives back what was there before
#
# It never ends the shell that sources it, whatever is missing and whatever `set` is in force; sourcing it again begins anew.

# Other shells end at the first word of what follows that they do not know.
if [ -z "${BASH_VERSION-}${ZSH_VERSION-}" ]; then
    echo 'muster: env.sh needs bash or zsh' >&2
    return 0
fi

# All that is ever set here. The last are those of `minikube docker-env`.
_muster_names="MUSTER_MASTER MUSTER_TOKEN MUSTER_LOAD MUSTER_LOAD_CLUSTER no_proxy NO_PROXY \
DOCKER_HOST DOCKER_TLS_VERIFY DOCKER_CERT_PATH DOCKER_API_VERSION MINIKUBE_ACTIVE_DOCKERD \
MINIKUBE_EXISTING_DOCKER_HOST MINIKUBE_EXISTING_DOCKER_TLS_VERIFY MINIKUBE_EXISTING_DOCKER_CERT_PATH"
# The port of manifests/base/service.yaml.
_muster_port=31898

_muster_say() {
    printf 'muster: %s\n' "$*" >&2
}

# The value before, with a mark in front that tells an empty variable from one that was not there.
_muster_keep() {
    local name
    for name in $_muster_names; do
        eval "_MUSTER_WAS_$name=\${$name+=\$$name}"
    done
}

_muster_give_back() {
    local name was
    for name in $_muster_names; do
        eval "was=\${_MUSTER_WAS_$name-}"
        if [ -n "$was" ]; then export "$name=${was#=}"; else unset "$name"; fi
        unset "_MUSTER_WAS_$name"
    done
}

_muster_down() {
    [ -n "${_MUSTER_IS_UP-}" ] || return 0
    _muster_give_back
    # Only this one entry: others may have come since.
    if [ -n "${_MUSTER_ON_PATH-}" ]; then
        local entries=":$PATH:"
        case $entries in *":$_MUSTER_ON_PATH:"*)
            entries=${entries%%":$_MUSTER_ON_PATH:"*}:${entries#*":$_MUSTER_ON_PATH:"}
            entries=${entries#:}
            PATH=${entries%:} ;;
        esac
    fi
    unset _MUSTER_ON_PATH _MUSTER_IS_UP
}

_muster_add_programs() {
    case ":$PATH:" in
        *":$1:"*) ;;
        *) _MUSTER_ON_PATH=$1 PATH=$1:$PATH ;;
    esac
    [ -x "$1/client" ] || _muster_say "there is no client in $1 yet: run \`make build\`"
}

# How images come to the nodes of this context, whose nodes run this container runtime.
_muster_images() {
    local context=$1 runtime=$2 docker_env
    case $context in
        kind-*)
            export MUSTER_LOAD=kind MUSTER_LOAD_CLUSTER="${context#kind-}"
            _muster_how="images are loaded into kind's $MUSTER_LOAD_CLUSTER" ;;
        k3d-*)
            export MUSTER_LOAD=k3d MUSTER_LOAD_CLUSTER="${context#k3d-}"
            _muster_how="images are loaded into k3d's $MUSTER_LOAD_CLUSTER" ;;
        *)
            if _muster_is_minikube "$context"; then
                case $runtime in
                    docker://*)
                        # Not by $SHELL, which may be a third one.
                        if docker_env=$(command minikube --profile="$context" docker-env --shell=bash 2>/dev/null); then
                            eval "$docker_env"
                            _muster_how="docker is minikube's"
                            return
                        fi
                        _muster_say "\`minikube docker-env\` failed, so images are loaded instead" ;;
                esac
                export MUSTER_LOAD=minikube MUSTER_LOAD_CLUSTER="$context"
                _muster_how="images are loaded into minikube's $MUSTER_LOAD_CLUSTER"
            else
                case $runtime in
                    docker://*) _muster_how="its nodes are taken to share this machine's Docker engine" ;;
                    *) _muster_how="its nodes do not use Docker, so name a registry with --push" ;;
                esac
            fi ;;
    esac
}

_muster_is_minikube() {
    command -v minikube >/dev/null 2>&1 || return 1
    case $(command minikube --profile="$1" status --format='{{.Host}}' 2>/dev/null) in
        Running*) return 0 ;;
        *) return 1 ;;
    esac
}

_muster_hint_without_cluster() {
    if command -v minikube >/dev/null 2>&1; then
        _muster_say "to start minikube: minikube start --container-runtime=docker"
    fi
}

# kubectl's answer, or the last line of its own reason for having none.
_muster_kubectl() {
    local reason
    { reason=$(command kubectl --request-timeout=10s "$@" 2>&1 >&3 3>&-); } 3>&1 && return
    printf '%s\n' "$reason" | tail -n 1
    return 1
}

_muster_cluster() {
    if ! command -v kubectl >/dev/null 2>&1; then
        _muster_say "there is no kubectl, so no cluster was looked for"
        return
    fi
    local context nodes
    if ! context=$(_muster_kubectl config current-context) || [ -z "$context" ]; then
        _muster_say "kubectl has no current context, so there is no cluster"
        _muster_hint_without_cluster
        return
    fi
    # One line a node: the runtime and the node's addresses.
    local of_node='{.status.nodeInfo.containerRuntimeVersion}{" "}{.status.addresses[?(@.type=="InternalIP")].address}{"\n"}'
    if nodes=$(_muster_kubectl get nodes --output=jsonpath="{range .items[*]}$of_node{end}") && [ -n "$nodes" ]; then
        _muster_master "$context" "$nodes"
        _muster_token
        return
    fi
    case $nodes in
        '') _muster_say "the cluster of context $context has no nodes" ;;
        # Only who has rights beyond one namespace may list them; what else there is works without.
        *"(Forbidden)"*)
            _muster_say "the nodes of context $context may not be listed: $nodes"
            _muster_say "so set MUSTER_MASTER by hand, to http://NODE:$_muster_port or a port-forward's address; it is ${MUSTER_MASTER:-not set}"
            _muster_token ;;
        *"(Unauthorized)"*) _muster_say "the cluster of context $context lets nobody in: $nodes" ;;
        *)
            _muster_say "the cluster of context $context does not answer: $nodes"
            _muster_hint_without_cluster ;;
    esac
}

# Where the master is, on the first of these nodes, and how images come to all of them.
_muster_master() {
    local context=$1 runtime=${2%%[[:space:]]*} address _muster_how=
    address=${2#*[[:space:]]}
    address=${address%%[[:space:]]*}
    _muster_past_proxy "$address"
    case $address in *:*) address="[$address]" ;; esac
    _muster_images "$context" "$runtime"
    export MUSTER_MASTER="http://$address:$_muster_port"
    _muster_say "MUSTER_MASTER=$MUSTER_MASTER for context $context; $_muster_how"
    # Another master's token must not be sent to this one.
    unset MUSTER_TOKEN
}

# Else a proxy would be handed the requests to this address, and the token with them.
_muster_past_proxy() {
    [ -n "${http_proxy-}${HTTP_PROXY-}${all_proxy-}${ALL_PROXY-}" ] || return 0
    # Where only one of the two is set, the other would hide it.
    local lower=${no_proxy:-${NO_PROXY-}} upper=${NO_PROXY:-${no_proxy-}}
    # A star means every address only while it is alone.
    [ "$lower" = '*' ] || export no_proxy="${lower:+$lower,}$1"
    [ "$upper" = '*' ] || export NO_PROXY="${upper:+$upper,}$1"
    _muster_say "a proxy is set: no_proxy and NO_PROXY name the node, too"
}

_muster_token() {
    local data token
    if ! data=$(_muster_kubectl get secret muster --output=jsonpath='{.data.token}'); then
        case $data in
            *"(NotFound)"*)
                _muster_say "there is no Secret muster in this namespace yet: run \`make token\`, then \`source env.sh\` again" ;;
            *) _muster_say "the Secret muster cannot be read, so set MUSTER_TOKEN by hand: $data" ;;
        esac
    elif token=$(printf %s "$data" | base64 -d 2>/dev/null) && [ -n "$token" ]; then
        export MUSTER_TOKEN="$token"
        _muster_say "MUSTER_TOKEN is that of the Secret muster"
    else
        _muster_say "the Secret muster holds no token"
    fi
}

_muster_env() {
    # zsh in its own mode splits no words; and who sources this may split them in ways of their own.
    [ -z "${ZSH_VERSION-}" ] || emulate -L sh
    local IFS=' '
    local root=$1 wish=$2
    _muster_down
    case $wish in
        down) _muster_say "undone" ;;
        *)
            _muster_keep
            _MUSTER_IS_UP=1
            _muster_add_programs "$root/dist"
            _muster_cluster ;;
    esac
}

# Only here do the two shells say which file they read; bash must not see zsh's way of asking.
if [ -n "${ZSH_VERSION-}" ]; then eval '_muster_file=${(%):-%x}'; else _muster_file=${BASH_SOURCE[0]-$0}; fi
# What fails in a condition ends no shell, `set -e` or not. (A script that sources this without words passes its own.)
if _muster_root=$(CDPATH='' cd -- "$(dirname -- "$_muster_file")" >/dev/null 2>&1 && pwd) && _muster_env "$_muster_root" "${1-}"; then :; fi
unset -f _muster_say _muster_keep _muster_give_back _muster_down _muster_add_programs _muster_images \
    _muster_is_minikube _muster_hint_without_cluster _muster_kubectl _muster_cluster _muster_master _muster_past_proxy \
    _muster_token _muster_env
unset _muster_names _muster_port _muster_file _muster_root
